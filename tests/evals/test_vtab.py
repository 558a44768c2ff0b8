"""VTAB-1k: the score, the protocol, the paper's rows."""

import numpy as np
import pytest
import torch
from PIL import Image

import sightline as sl
from sightline.evals.vtab_protocol import vtab_rows
from sightline.spec import Features
from tests.evals.makers import random_model


def test_e20_the_score_is_the_mean_of_nineteen():
    rows = sl.evals.vtab_references()
    assert [round(100 * r.score, 2) for r in rows] == [77.63, 76.29, 72.71]
    groups = [[round(100 * v, 2) for v in r.by_group.values()] for r in rows]
    for found, expected in zip(groups, [(86.69, 87.00, 65.03), (85.56, 86.72, 62.96), (83.27, 84.65, 57.50)]):
        assert found == pytest.approx(expected, abs=0.011)
    assert all(len(r.tasks) == 19 and r.complete for r in rows)
    assert list(rows[0].summary()) == ["mean of 19", "natural", "specialized", "structured"]


def test_the_protocol():
    """l2 is chosen on the 200 after the 800, the final fit sees all 1,000, the test set only the end."""
    seen = []

    def fit(model, task, splits):
        train, val, both = (set(splits[k].origins()[1].tolist()) for k in ("train800", "val200", "train1000"))
        seen.append((task.name, len(splits["test"]), train | val == both, not train & val))
        return 0.25 if task.group == "natural" else 0.75

    r = sl.evals.vtab(random_model(), fit=fit)
    assert len(seen) == len(sl.data.suite("scenes-vtab")) == len(r.tasks)
    assert all(s[1:] == (2000, True, True) for s in seen)
    assert r.by_group == {"natural": 0.25, "specialized": 0.75, "structured": 0.75}
    assert r.score == pytest.approx(r.accuracy.mean())
    assert r.complete


class Columns(torch.nn.Module):
    """A model that sees how bright each column and each row of an image is."""

    image = sl.ImageSpec(size=(16, 16))

    def features(self, x):
        seen = torch.cat([x.mean(2), x.mean(3)], 2).flatten(1)
        return Features(tokens=seen[:, None], grid=(1, 1), prefix=seen[:, None][:, :0], pooled=seen)


def test_linear_on_scenes_by_the_protocol(tmp_path):
    r = sl.evals.vtab(Columns(), tasks=["aerial", "distance"], batch=500)
    assert r.tasks == ("aerial", "distance")
    assert r.accuracy[1] > 0.25  # one of six; near things are low in the image
    assert not r.complete
    assert list(r.summary()) == ["mean of 2 of 11 tasks", "specialized", "structured"]
    assert sl.Result.load(r.save(tmp_path / "v.npz")).score == r.score
    assert [row["task"] for row in vtab_rows(r)] == ["aerial", "distance", "mean", "mean", "mean of 2"]


def test_vtab_stands_beside_table_9_and_says_what_is_missing(tmp_path):
    model = random_model()
    with pytest.raises(ValueError, match="vtab/caltech101 is not in"):
        sl.evals.vtab(model, "vtab", root=tmp_path)
    with pytest.raises(ValueError, match="no task nothing"):
        sl.evals.vtab(model, tasks=["nothing"])
    ours = sl.evals.vtab_references()[2]
    rows = vtab_rows(ours)
    assert len(rows) == 19 + 3 + 1
    assert rows[-1]["ViT-H/14 (JFT)"] == pytest.approx(0.7763, abs=5e-5)
    assert (rows[4].pop("task"), rows[4].pop("group")) == ("pets", "natural")
    assert list(rows[4].values()) == pytest.approx([0.927, 0.972, 0.967, 0.927])


def test_a_users_vtab_task_runs(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 400), ("val", 100), ("test", 20)):
        for k in range(2):
            folder = tmp_path / "vtab" / "patch-camelyon" / split / str(k)
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 100, (8, 8, 3), dtype=np.uint8) + np.uint8(100 * k)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    torch.manual_seed(0)
    r = sl.evals.vtab(random_model("vit-nano4", size=8), "vtab", tasks=["patch-camelyon"], root=tmp_path)
    assert r.accuracy[0] > 0.9
