"""What two models differ in, from the run folders they were loaded from."""

import pytest

import sightline as sl
from sightline.observe.model import observe
from sightline.observe.provenance import training_of, what_varies
from sightline.spec import to_json


def trained(folder, *, images=100, seed=0, data="scenes/shape", **model):
    """A model as it comes out of a run folder."""
    sl.save(sl.build("vit-nano4", classes=4, seed=seed, **{"depth": 1, **model}), folder / "model.safetensors")
    about = {"data": {"name": data, "train": images}, "seed": seed, "identity": {}, "plan": {}}
    (folder / "run.json").write_text(to_json(about))
    return observe(sl.load(folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("other", "varied"),
    [
        ({"images": 10}, "data"),
        ({"seed": 1}, "seed"),
        ({"depth": 2}, "size"),
        ({"pool": "gap"}, "pooling"),
        ({"data": "scenes/count", "images": 10}, ""),
        ({}, ""),
    ],
)
def test_what_varies(tmp_path, other, varied):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    assert what_varies(trained(folders[0]), trained(folders[1], **other)) == varied


def test_a_study_of_data_is_written_by_what_varies(tmp_path):
    few, full = tmp_path / "few", tmp_path / "full"
    few.mkdir()
    full.mkdir()
    models = trained(few, images=10), trained(full, images=100, seed=1)
    scenes = sl.dataset("scenes/shape", num=8, size=32)
    for a, b in (models, models[::-1]):  # the model of more images is the reference, whichever comes first
        out = tmp_path / f"out-{a is models[0]}"
        sl.compare(a, b, scenes, out, only=["block-similarity"], names=["few", "full"][:: 1 if a is models[0] else -1])
        found = sl.Result.load(out / "block-similarity.npz")
        assert (found.varied, found.models, found.training_images) == ("data", ("few",), (10,))
        assert found.parameters[0] > 1000
    assert [v.claim for v in sl.verdicts([found])] == ["C20"]


def test_other_weights_tell_nothing():
    model = sl.build("vit-nano4", depth=1)
    assert training_of(model) is None
    assert what_varies(observe(model), observe(sl.build("bit-nano"))) == "family"
    assert what_varies(observe(model), observe(model)) == ""
