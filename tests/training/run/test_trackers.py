"""The log of a run in TensorBoard, Weights & Biases, MLflow and trackio, each in its offline mode where it is there."""

import json
import sys
from types import SimpleNamespace

import pytest

import sightline as sl
from tests.training.tiny import data, losses, model, recipe

NAMES = ("tensorboard", "wandb", "mlflow", "trackio")


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_is_not_there_is_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(ValueError, match=rf"track={name} needs a package: pip install {name}\."):
        sl.fit(model(), data()[0], recipe(track=name), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker():
    with pytest.raises(ValueError, match="expected one of tensorboard, wandb, mlflow, trackio, None"):
        recipe(track="excel")


class Writer:
    """What TensorBoard's writer is to us."""

    def __init__(self, folder):
        self.folder, self.rows, self.closed = folder, [], False
        Writer.last = self

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))

    def close(self):
        self.closed = True


@pytest.mark.parametrize("how", [{"tensorboard": True}, {"track": "tensorboard"}])
def test_tensorboard_gets_the_rows(tmp_path, monkeypatch, how):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    run = sl.fit(model(), data()[0], recipe(steps=2, **how), out=tmp_path / "run")
    assert Writer.last.folder == str(tmp_path / "run/tensorboard")
    assert [v for n, v, _ in Writer.last.rows if n == "train/loss"] == pytest.approx(losses(run), rel=1e-6)
    assert [s for n, _, s in Writer.last.rows if n == "lr"] == [1, 2]
    assert Writer.last.closed


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    class Broken(Writer):
        def add_scalar(self, name, value, step):
            raise ConnectionError("the server is away")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Broken))
    run = sl.fit(model(), data()[0], recipe(steps=2, track="tensorboard"), out=tmp_path / "run")
    assert len(losses(run)) == 2
    assert caplog.text.count("tensorboard gets no more rows (the server is away)") == 1


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    sl.fit(model(), data()[0], recipe(steps=2, track="wandb"), out=tmp_path / "run")
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"train/loss" in written.read_bytes()


def test_mlflow_in_a_folder(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = sl.fit(model(), data()[0], recipe(steps=2, track="mlflow"), out=tmp_path / "run")
    client = mlflow.MlflowClient(f"file:{tmp_path}/mlruns")
    (found,) = client.search_runs([client.get_experiment_by_name("sightline").experiment_id])
    values = [m.value for m in client.get_metric_history(found.info.run_id, "train/loss")]
    assert values == pytest.approx(losses(run), rel=1e-6)
    assert found.data.params["batch"] == str(recipe().batch)
    assert found.info.status == "FINISHED"


def test_trackio_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio")
    sl.fit(model(), data()[0], recipe(steps=2, track="trackio"), out=tmp_path / "run")
    held = b"".join(p.read_bytes() for p in (tmp_path / "trackio").rglob("*") if p.is_file())
    assert b"train/loss" in held


class Service:
    """Weights & Biases and trackio as far as they are used here."""

    def __init__(self):
        self.opened, self.rows, self.closed = [], [], 0

    def init(self, **how):
        self.opened.append(json.loads(json.dumps(how)))
        return self

    def log(self, row, *, step):
        self.rows.append((step, row))

    def finish(self):
        self.closed += 1


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_run_that_resumes_goes_on_in_the_same_run_of_the_tracker(tmp_path, monkeypatch, name):
    service = Service()
    monkeypatch.setitem(sys.modules, name, service)
    stop = (1, lambda model: (_ for _ in ()).throw(RuntimeError("stopped")))
    settings = recipe(steps=2, track=name, save_every=1)
    with pytest.raises(RuntimeError, match="stopped"):
        sl.fit(model(), data()[0], settings, out=tmp_path / "run", evals=[stop])
    run = sl.fit(model(), data()[0], settings, out=tmp_path / "run")
    first, second = service.opened
    assert first == second
    assert first["resume"] == "allow"
    assert first["config"]["lr"] == settings.lr
    assert service.closed == 2
    assert [row["train/loss"] for _, row in service.rows] == pytest.approx(losses(run), rel=1e-6)
