"""What studies measure beyond accuracy: parts of the classes, individuals found again, the papers' curves."""

from dataclasses import replace

import numpy as np
import pytest

import sightline as sl
from sightline.cli import main
from sightline.studies import given
from sightline.studies.definitions.table import STUDIES
from sightline.studies.engine import measures
from sightline.studies.engine.analyses import curves, unpacked
from sightline.studies.engine.images import open_images
from sightline.studies.engine.running import Started, expected
from sightline.studies.engine.store import Store, write
from sightline.studies.engine.work import do
from tests.studies.tiny import IMAGES, TINY, train
from tests.views import makers


@pytest.fixture
def store(tmp_path):
    found = Store(tmp_path / "out")
    found.prepare()
    return found


def test_a_long_tail_is_part_of_the_key_and_of_the_images(tmp_path, monkeypatch):
    whole = sl.data.Arrays(np.zeros((100, 4, 4, 3), np.uint8), np.arange(100) % 5, name="hundred")
    monkeypatch.setattr("sightline.studies.engine.images.dataset", lambda *_, **__: whole)
    plain = sl.studies.Images(name="hundred", size=4)
    tail = replace(plain, tail=4)
    assert open_images(tail, tmp_path).counts() == [20, 14, 10, 7, 5]
    assert replace(train(1e-3, 0), images=tail).key != replace(train(1e-3, 0), images=plain).key


def test_some_classes_alone_are_numbered_anew():
    images = sl.data.Arrays(np.arange(40, dtype=np.uint8).reshape(10, 2, 2, 1).repeat(3, 3), np.arange(10) % 5)
    part = measures.of_classes(images, (4, 1))
    assert part.labels.tolist() == [0, 1, 0, 1]
    assert np.array_equal(part[1][0], images[4][0])
    assert measures.of_classes(images, ()) is images


def test_individuals_are_found_again(store):
    model = replace(train(1e-3, 0), recipe=None, images=replace(IMAGES, size=16))
    people = sl.studies.Images(name="scenes/identity", num=30, size=16)
    task = sl.studies.Measurement(name="retrieval", models=(model,), images=(people,))
    for t in (model, task):
        store.describe(t)
        assert do(store, t) == "done", store.reason(t)
    found = store.result(task)
    assert set(found) == {"whole", "patches", "true patches", "whole by chance", "patches by chance"}
    assert all(0 < x <= 1 for x in found.values())


def test_figures_are_read_from_the_analyses_of_the_verdicts(store, monkeypatch):
    seen = []

    def analyze(folder, models, names, images, *, n, only=()):
        seen.append(folder)
        return [makers.cka(4, 4, models=(makers.VIT,)), makers.distance(), makers.residual(), makers.filters()]

    monkeypatch.setattr(measures, "analyze", analyze)
    model = replace(train(1e-3, 0), recipe=None)
    options = (("names", ("ViT",)), ("n", 8))
    both = [
        sl.studies.Measurement(name=name, models=(model,), images=(IMAGES,), options=options)
        for name in ("verdicts", "figures")
    ]
    for task in (model, *both):
        store.describe(task)
        assert do(store, task) == "done", store.reason(task)
    assert seen == [store.folder(both[0])] * 2
    assert {"distance", "residual", "filters"} <= store.result(both[1]).keys()


def test_curves_keep_what_the_figures_show():
    found = curves([makers.distance(), makers.localization(), makers.receptive()])
    heads = unpacked(found["distance"][makers.VIT.name])
    assert np.allclose(heads, np.sort(makers.distance().pixels / makers.distance().uniform), rtol=1e-2)
    assert (np.diff(heads, axis=1) >= 0).all()
    assert len(found["fields"][makers.VIT.name]["maps"]) == 3


def test_given_networks_are_judged_by_the_claims_of_seeing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(given, "analyze", lambda *_, **__: [makers.distance(), makers.fewshot()])
    monkeypatch.setattr(given, "open_model", lambda *_, **__: None)
    found = sl.studies.judge_networks(["vit-nano4", "bit-nano"], "scenes/shape", out=tmp_path)
    assert {v.claim for v in found} == {"V8", "C5"}
    assert {v.about for v in found} == {"these models"}
    for arguments in (["run", "data", "--models", "a,b", "--data", "x"], ["run", "seeing", "--models", "a,b"]):
        with pytest.raises(SystemExit) as stop:
            main(["study", *arguments])
        assert stop.value.code == 2
        assert "belong together" in capsys.readouterr().err


def test_hours_left_are_known_before_anything_is_measured_and_the_table_fits(monkeypatch, store, capsys):
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    started = Started(study="tiny", seeds=(0, 1, 2))
    write(store.path / "started" / "tiny.json", {**vars(started), "only": {}})
    row = sl.studies.studies_status(store.path)[0]
    assert row["hours left"] >= 0
    assert sum(expected(t) for t in started.tasks()) > 0
    monkeypatch.setenv("COLUMNS", "80")
    main(["study", "status", "--out", str(store.path)])
    said = capsys.readouterr().out
    for head in ("study", "trained", "measured", "running", "failed", "core-hours", "left"):
        assert head in said
    assert "not a number" not in said
