"""Records of earlier versions: a field that did not exist yet has its default."""

import pytest

from sightline.training.run.identity import ADDED, comparable, find_difference

OLD = {
    "recipe": {"lr": 0.1, "augment": {"flip": True}},
    "model": {"config": {"width": 64}, "weights": "a"},
    "version": 2,
}


def record(**config):
    augment = {"flip": True, "trivial": False}
    return {
        "recipe": {"lr": 0.1, "augment": augment},
        "model": {"config": {"width": 64, **config}, "weights": "a"},
        "version": 2,
    }


def test_new_fields_with_their_defaults_make_no_difference():
    config = {k: v for k, v in ADDED.items() if k != "trivial"}
    assert find_difference(OLD, comparable(OLD, record(**config))) == ""


@pytest.mark.parametrize(
    ("change", "words"), [({"qk_norm": True}, "qk_norm is None there, True here"), ({"width": 65}, "width")]
)
def test_everything_else_does(change, words):
    here = record(**change)
    assert words in find_difference(OLD, comparable(OLD, here))
