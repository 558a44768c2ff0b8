"""The suites: nineteen tasks with the paper's groups, and one that runs anywhere, under one protocol."""

import numpy as np
import pytest
from PIL import Image

import sightline as sl


def test_vtab_is_nineteen_tasks_in_three_groups():
    tasks = sl.data.suite("vtab")
    groups = [t.group for t in tasks]
    assert (len(tasks), groups.count("natural"), groups.count("specialized"), groups.count("structured")) == (
        19,
        7,
        4,
        8,
    )
    by_name = {t.name: t for t in tasks}
    assert not by_name["dsprites-orientation"].flip
    assert not by_name["clevr-count"].crop
    assert by_name["smallnorb-azimuth"].classes == 18


@pytest.mark.parametrize("task", sl.data.suite("scenes-vtab"), ids=lambda t: t.name)
def test_scenes_vtab_runs_anywhere(task):
    parts = task.splits(size=16)
    assert {k: len(v) for k, v in parts.items()} == {"train800": 800, "val200": 200, "train1000": 1000, "test": 2000}
    train, val, both = (set(parts[k].origins()[1].tolist()) for k in ("train800", "val200", "train1000"))
    assert train | val == both
    assert not train & val
    assert min(parts["train800"].counts()) > 0
    assert len(parts["test"].classes) == task.classes


def test_a_users_vtab_folder(tmp_path):
    task = next(t for t in sl.data.suite("vtab") if t.name == "patch-camelyon")
    with pytest.raises(ValueError, match="patch-camelyon is not in"):
        task.splits(root=tmp_path)
    for split, count in (("train", 500), ("val", 110), ("test", 5)):
        for kind in ("0", "1"):
            folder = tmp_path / "vtab" / "patch-camelyon" / split / kind
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.png").touch()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "vtab/patch-camelyon/test/0/0.png")
    parts = task.splits(root=tmp_path)
    assert {k: len(v) for k, v in parts.items()} == {"train800": 800, "val200": 200, "train1000": 1000, "test": 10}
    assert parts["test"][0][0].shape == (4, 4, 3)
    with pytest.raises(ValueError, match="no suite"):
        sl.data.suite("other")
