"""Models are told apart by fingerprint, results by images: nothing is merged or compared silently."""

from dataclasses import replace

import pytest

import sightline as sl
from sightline.spec import About
from sightline.studies.evidence import OTHER_IMAGES, gather, tell_apart
from tests.views import makers
from tests.views.makers import CNN, VIT


def of(result, *models, images=""):
    """The same result about other models or images."""
    return replace(result, about=About(models=models or result.about.models, images=images))


def model(fingerprint, name="model", like=VIT):
    return replace(like, name=name, fingerprint=fingerprint)


def verdicts(number, *results):
    return [v for v in sl.verdicts(results) if v.claim == number]


def test_two_models_under_one_name_are_two_models():
    near, far = makers.distance(), makers.distance(low=(90.0, 95.0, 100.0))
    found = verdicts("C5", of(near, model("1111")), of(far, model("2222")))
    assert [(v.models, v.state) for v in found] == [(("model (a)",), "holds"), (("model (b)",), "does not hold")]
    assert [v.fingerprints for v in found] == [("1111",), ("2222",)]


def test_one_model_under_two_names_is_one_model():
    before, after = makers.receptive(own=0.1, side="before"), makers.receptive(own=0.6)
    (found,) = verdicts("C9", of(before, model("1111", "ViT")), of(after, model("1111", "my run")))
    assert [e.state for e in found.effects] == ["holds", "holds", "undecided"]  # there is no ResNet beside it
    assert verdicts("C9", of(before, model("1111", "ViT")), of(after, model("2222", "ViT"))) == []


def test_a_later_result_replaces_an_earlier_one_of_the_same_model_and_images():
    near, far = makers.distance(), makers.distance(low=(90.0, 95.0, 100.0))
    assert [v.state for v in verdicts("C5", of(near, model("1111")), of(far, model("1111")))] == ["does not hold"]


def test_results_on_different_images_are_not_merged():
    near, far = makers.distance(), makers.distance(low=(90.0, 95.0, 100.0))
    found = verdicts("C5", of(near, model("1111"), images="cats"), of(far, model("1111"), images="dogs"))
    assert [(v.images, v.state) for v in found] == [("cats", "holds"), ("dogs", "does not hold")]


@pytest.mark.parametrize(
    ("number", "make"),
    [
        ("C8", lambda m: makers.receptive(12.0, model=m)),
        ("C11", lambda m: makers.residual(model=m)),
        ("C15", lambda m: makers.localization(model=m)),
        ("C1", lambda m: makers.cka(8, 8, models=(m,))),
    ],
)
def test_two_models_are_compared_on_the_same_images_only(number, make):
    a, b = make(VIT), make(CNN)
    for first, second in (("cats", "cats"), ("", "")):
        (v,) = verdicts(number, of(a, images=first), of(b, images=second))
        assert v.effects
        assert v.images == first
    for first, second in (("cats", "dogs"), ("cats", ""), ("", "dogs")):
        (v,) = verdicts(number, of(a, images=first), of(b, images=second))
        assert (v.state, v.effects, v.why()) == ("undecided", (), OTHER_IMAGES)
        assert v.models == ("small ViT", "small CNN")


def test_that_two_were_not_compared_is_said_only_where_no_pair_can_be():
    a, b = makers.residual(model=VIT), makers.residual(model=CNN)
    more = makers.residual(model=model("3333", like=CNN))
    (v,) = verdicts("C11", of(a, images="cats"), of(b, images="cats"), of(more, images="dogs"))
    assert v.effects
    assert {v.why() for v in verdicts("C11", of(a, images="cats"), of(b, images="dogs"), of(more, images="dogs"))} == {
        OTHER_IMAGES
    }


def test_of_several_images_the_common_ones_are_compared():
    a, b = makers.receptive(12.0, jump=8.0), makers.receptive(5.0, model=CNN)
    found = verdicts("C8", of(a, images="cats"), of(b, images="cats"), of(b, images="dogs"))
    assert [(v.images, v.state) for v in found] == [("cats", "holds")]


def test_a_cnn_on_other_images_is_named_and_left_out():
    vit = [makers.receptive(own=0.6), makers.receptive(own=0.1, side="before")]
    cnn = [makers.receptive(own=0.3, side=side, model=CNN) for side in ("after", "before")]
    together = [of(r, images="cats") for r in vit + cnn]
    apart = [of(r, images="cats") for r in vit] + [of(r, images="dogs") for r in cnn]
    assert verdicts("C9", *together)[0].models == ("small ViT", "small CNN")
    (v,) = verdicts("C9", *apart)
    assert v.models == ("small ViT",)
    assert v.note == f"small CNN {OTHER_IMAGES}"


def test_names_are_told_apart_by_folder_where_each_model_has_its_own():
    results = [of(makers.mass(), model(f)) for f in ("1111", "2222", "1111")]
    named = tell_apart(results, ["runs-a", "runs-b", "runs-a"])
    assert [r.about.names for r in named] == [("model (runs-a)",), ("model (runs-b)",), ("model (runs-a)",)]
    mixed = tell_apart(results, ["runs-a", "runs-b", "runs-b"])
    assert [r.about.names for r in mixed] == [("model (a)",), ("model (b)",), ("model (a)",)]
    assert tell_apart(results[:1], ["runs-a"]) == results[:1]


def test_an_unknown_fingerprint_is_no_fingerprint():
    named = tell_apart([of(makers.mass(), model("1111")), of(makers.mass(), model(""))])
    assert [r.about.names for r in named] == [("model (a)",), ("model (unknown weights)",)]
    assert len(gather(named).models) == 2


def test_new_names_are_not_taken_ones():
    results = [of(makers.mass(), model(f, n)) for f, n in (("1", "m"), ("2", "m"), ("3", "m (a)"))]
    names = [r.about.names[0] for r in tell_apart(results)]
    assert len(set(names)) == 3


def test_two_models_of_one_result_stay_two():
    pair = of(makers.cka(4, 5), model("1111"), model("2222", like=CNN))
    ((a, b, r),) = gather([pair]).pairs
    assert (a.id.name, b.id.name) == r.about.names == ("model (a)", "model (b)")
