"""Folders of studies that were damaged, forged or tampered with: noticed, set aside, done again, or one sentence."""

import json
import os
import random
import shutil
from contextlib import suppress
from unittest import mock

import numpy as np
import pytest

import sightline as sl
from sightline.files import lock
from sightline.studies.definitions.table import STUDIES
from sightline.studies.engine import images as study_images
from sightline.studies.engine.images import open_images
from sightline.studies.engine.store import Store, read, write
from sightline.studies.engine.work import do
from tests.attack import mutations
from tests.attack.faults import content
from tests.attack.small_study import SMALL, run_here
from tests.studies.tiny import IMAGES

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links are those of POSIX")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(STUDIES, "small", SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("studies") / "out"
    run_here(out)
    return out


@pytest.fixture
def out(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "out")


def test_a_flipped_bit_in_any_number_is_noticed(tmp_path):
    write(tmp_path / "a.json", {"accuracy": 0.123456, "none": float("nan"), "of": [1, "Infinity"], "ü": {"7": (1, 2)}})
    whole, value, order = (tmp_path / "a.json").read_bytes(), read(tmp_path / "a.json"), random.Random(0)
    assert value["of"] == [1, "Infinity"]
    for _ in range(200):
        raw = bytearray(whole)
        raw[order.randrange(len(raw))] ^= 1 << order.randrange(8)
        (tmp_path / "a.json").write_bytes(raw)
        with suppress(ValueError):
            there = read(tmp_path / "a.json")  # white space, or the name of the checksum: the numbers are unharmed
            assert repr({key: there[key] for key in value}) == repr(value)


def test_damaged_files_of_tasks_are_set_aside_and_done_again(finished, out):
    expected = content(finished)
    paths = sorted(out.glob("*/*/result.json"))
    for path, text in zip(paths, ('{"a', "[" * 100_000, "null", '{"accuracy": 1, "checksum": "0"}')):
        path.write_text(text)
    folders = sorted(out.glob("runs/*"))
    (folders[0] / "spec.json").write_text('{"training": {"model": 3}}')
    (out / "studies.json").write_bytes(b"\x80")
    (folders[1] / "spent.json").write_text('{"core_seconds": 1' + "0" * 400 + "}")
    assert [row["trained"] for row in sl.studies.studies_status(out)] == ["2/2"]
    run_here(out)
    aside = {p.name for p in out.rglob("*.damaged")}
    assert aside == {"result.json.damaged", "spec.json.damaged", "spent.json.damaged"}
    for path in out.rglob("*.damaged"):
        path.unlink()
    assert content(out) == expected


@posix
def test_pipes_and_links_in_a_folder_of_studies_lead_nowhere(out, tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    shutil.rmtree(out / "results")  # which hold the numbers, too
    path = next(out.glob("measurements/*/result.json"))
    path.unlink()
    os.mkfifo(path)
    (path.parent / "output.txt").unlink()
    (path.parent / "output.txt").symlink_to(victim)
    with pytest.raises(ValueError, match="is not complete"):
        run_here(out)
    assert "output.txt is not a plain file" in (path.parent / "failed.json").read_text()
    (path.parent / "output.txt").unlink()
    run_here(out)
    assert victim.read_text() == "mine"
    os.mkfifo(out / "started" / "x.json")
    with pytest.raises(ValueError, match=r"x.json is damaged \(.*not a regular file"):
        sl.studies.studies_status(out)


def test_forged_results_are_refused_in_a_sentence(finished, tmp_path):
    file, order, seen = tmp_path / "small.json", random.Random(3), set()
    for name in ("small.json", "small.spent.json"):
        shutil.copy(finished / "results" / name, tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in ("small.json", "small.spent.json")}
    for _ in range(60):
        name = order.choice(list(whole))
        plain = json.loads(whole[name])
        del plain["checksum"]
        (tmp_path / name).write_bytes(mutations.text_json(json.dumps(plain).encode(), order))
        said = ""
        try:
            sl.report.write_atlas(tmp_path)
        except ValueError as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 2000
        seen.add(bool(said))
        (tmp_path / name).write_bytes(whole[name])
    assert seen == {True, False}
    assert sl.studies.judge_results(file)


def pixels(store):
    data = open_images(IMAGES, store)
    return np.stack(list(data.images(np.arange(len(data)))))


def test_images_of_a_store_are_checked_and_their_source_may_not_change(tmp_path, caplog):
    whole = pixels(tmp_path)
    (file,) = tmp_path.rglob("images.npy")
    raw = bytearray(file.read_bytes())
    raw[500] ^= 4
    file.write_bytes(raw)
    study_images.CHECKED.clear()  # as another process would
    assert np.array_equal(pixels(tmp_path), whole)
    assert "It is now images.npy.damaged, and drawn again" in caplog.text
    study_images.CHECKED.clear()
    other = sl.dataset("scenes/shape", num=64, size=16, seed=1)
    with (
        mock.patch.object(study_images, "source_of", return_value=other),
        pytest.raises(ValueError, match=r"scenes/shape \(train\) has changed since"),
    ):
        open_images(IMAGES, tmp_path)


def test_a_task_of_another_process_is_left_to_it(out):
    store, task = Store(out), next(iter(SMALL.plan((0,))[0].values())).models[0]
    (store.folder(task) / "result.json").unlink()
    with lock(store.folder(task) / ".lock"):
        assert do(store, task) == "busy"


def test_damaged_weights_are_named_and_what_to_do(out):
    path = next(out.glob("runs/*/train/model.safetensors"))
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw)
    shutil.rmtree(out / "results")  # which hold the numbers, too
    for result in out.glob("measurements/*/result.json"):
        result.unlink()
    with pytest.raises(ValueError, match="is not complete"):
        run_here(out)
    (failed,) = out.glob("measurements/*/failed.json")
    assert f"its checksum differs. Remove {path.parents[1]}, and the same command" in read(failed)["reason"]
    shutil.rmtree(path.parents[1])
    run_here(out)


def test_a_training_never_starts_from_the_weights_of_half_another(out):
    store = Store(out)
    (again,) = [t for t in SMALL.plan((0,))[0].values() if t.models[0].start]
    (store.folder(again.models[0]) / "result.json").unlink()
    (store.folder(again.models[0].start) / "result.json").unlink()
    assert do(store, again.models[0]) == "failed"
    assert f"it needs run {again.models[0].start.key}, which is not done" in store.reason(again.models[0])
