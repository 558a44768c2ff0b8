"""Value types: what is saved comes back, and nothing half-written is ever seen."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sightline as sl


@dataclass(frozen=True, kw_only=True)
class Sample(sl.Result):
    numbers: np.ndarray
    labels: tuple[str, ...] = ()
    size: tuple[int, int] = (1, 2)

    def summary(self):
        return {"mean": float(self.numbers.mean())}


NAMES = st.text(max_size=12).filter(lambda s: "\x00" not in s)


@given(
    numbers=hnp.arrays(st.sampled_from([np.float64, np.float32, np.int64, np.bool_]), hnp.array_shapes(max_dims=3)),
    labels=st.lists(NAMES, max_size=4).map(tuple),
    how=st.dictionaries(NAMES, st.one_of(st.integers(-(2**50), 2**50), NAMES, st.none(), st.booleans()), max_size=3),
)
def test_a_saved_result_comes_back(tmp_path_factory, numbers, labels, how):
    path = tmp_path_factory.mktemp("results") / "a.npz"
    before = Sample(title="t", caption="c", numbers=numbers, labels=labels, how=how)
    after = sl.Result.load(before.save(path))
    assert type(after) is Sample
    np.testing.assert_array_equal(after.numbers, numbers)
    assert after.numbers.dtype == numbers.dtype
    assert (after.labels, after.size, after.how) == (labels, (1, 2), how)


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path):
    path = Sample(title="old", caption="", numbers=np.ones(2)).save(tmp_path / "a.npz")
    with pytest.raises(TypeError, match="not object"):
        Sample(title="new", caption="", numbers=np.ones(2), how={"bad": object()}).save(path)
    assert sl.Result.load(path).title == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"not a result"])
def test_a_file_that_is_no_result_is_refused(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a saved Sightline result"):
        sl.Result.load(path)
    with pytest.raises(ValueError, match="not a saved"):
        sl.Result.load(tmp_path / "missing.npz")


def test_a_result_of_an_unknown_kind_is_refused(tmp_path):
    path = sl.Result(title="plain", caption="").save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="holds a Result"):
        Sample.load(path)


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        sl.ImageSpec(size=(2, 2)).size = (3, 3)
    tokens = torch.arange(12.0).view(1, 6, 2)
    made = sl.Features(tokens=tokens, grid=(2, 3), prefix=tokens[:, :0], pooled=tokens.mean(1))
    assert made.map[0, :, 1, 2].tolist() == tokens[0, 5].tolist()
