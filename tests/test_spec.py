"""Value types: what is saved comes back, and nothing half-written is ever seen."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sightline as sl
from sightline.spec import Features, from_json, legible, to_json


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


SPELLED = st.from_regex(r"\\{0,2}(NaN|-?Infinity)", fullmatch=True)
LEAF = st.one_of(st.none(), st.booleans(), st.integers(-(2**50), 2**50), st.floats(), st.text(max_size=8), SPELLED)
JSON = st.deferred(
    lambda: st.one_of(LEAF, st.lists(JSON, max_size=3), st.dictionaries(st.text(max_size=5), JSON, max_size=3))
)


@given(value=JSON)
def test_what_is_written_as_json_is_strict_and_comes_back(value):
    """Infinities and NaN too, and text that is spelled like them."""
    text = to_json(value)
    json.loads(text, parse_constant=pytest.fail)
    assert repr(from_json(text)) == repr(value)  # repr: NaN is not equal to itself


def test_numbers_that_are_not_finite_are_saved_as_what_they_are(tmp_path):
    values = {"a": math.inf, "b": [-math.inf, np.float32("nan")], "c": "NaN"}
    path = Sample(title="t", caption="c", numbers=np.array([np.inf, np.nan]), how=values).save(tmp_path / "a.npz")
    json.loads(str(np.load(path)["__head__"]), parse_constant=pytest.fail)
    after = sl.Result.load(path)
    assert repr(after.how) == repr({"a": math.inf, "b": (-math.inf, math.nan), "c": "NaN"})
    np.testing.assert_array_equal(after.numbers, [np.inf, np.nan])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (f"{math.nan:.2f} of {math.inf:.1f}.", "not a number of ∞."),
        (f"{-math.inf:,.4g}; {math.nan:+.1f} points", "-∞; not a number points"),
        (f"{math.nan:.0f} %", "not a number"),
        ("inner.inf.0 info nano banana", "inner.inf.0 info nano banana"),
    ],
)
def test_numbers_in_sentences_are_legible(written, read):
    assert legible(written) == read


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
    made = Features(tokens=tokens, grid=(2, 3), prefix=tokens[:, :0], pooled=tokens.mean(1))
    assert made.map[0, :, 1, 2].tolist() == tokens[0, 5].tolist()


def test_a_result_loads_in_a_process_that_has_imported_nothing_else(tmp_path):
    """Rooms are imported lazily, so the type of a saved result may not be there yet."""
    path = sl.analysis.ObjectMass(title="", caption="", mass=np.array([0.6]), area=np.array([0.2])).save(
        tmp_path / "r.npz"
    )
    code = f"import sightline as sl; print(type(sl.Result.load({str(path)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "ObjectMass"
