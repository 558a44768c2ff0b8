"""Smoke runs and the proof of resume, from Python."""

import re
import threading

import pytest
import torch

import sightline as sl
from sightline.training.rehearsal import smoke_recipe
from sightline.training.run.folder import Run
from tests.training.tiny import data, losses, model, recipe


def test_smoke_run_is_two_steps_and_one_evaluation(tmp_path):
    train, val = data()
    long = sl.recipes.vit_finetune("pets", size=16)
    report = sl.training.smoke_run(model(), train, long, val=val, out=tmp_path / "run")
    assert report.run.finished
    assert list(report.losses) == losses(report.run)
    assert [row["step"] for row in report.run.rows()] == [1, 2]
    assert sum("val/accuracy" in row for row in report.run.rows()) == 1
    assert report.metrics["val/accuracy"] == report.run.summary()["val/accuracy"]


@pytest.mark.parametrize("name", sl.recipes.names())
def test_every_recipe_can_be_cut_down(name):
    context = {"model": "vit-b16", "data": "imagenet", "num_images": 1000, "image_area": 1024}
    short = smoke_recipe(sl.recipes.get(name, **context), images=5)
    assert (short.total_steps(5), short.batch) == (2, 5 // short.views * short.views)  # views of an image stay together
    assert short.warmup_steps(5) < 2


def test_proof_of_resume_leaves_the_model_and_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    m, (train, val) = model(dropout=0.1), data()
    before = {n: t.clone() for n, t in m.state_dict().items()}
    proof = sl.training.prove_resume(m, train, recipe(epochs=9, ema=0.9), val=val)
    assert proof.holds
    assert (proof.steps, proof.interrupted_at) == (6, 3)
    assert all(torch.equal(before[n], t) for n, t in m.state_dict().items())
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith("torchinductor")]  # torch's own cache


def test_a_resume_that_differs_is_no_proof(monkeypatch):
    """A run that resumes from other weights ends with other weights."""
    real = sl.training.Run.truncate_log

    def spoil(self, step):
        real(self, step)
        if step:
            file = self.path / "log.jsonl"
            file.write_text(re.sub(r'("train/loss": ?)', r"\g<1>1", file.read_text()))

    monkeypatch.setattr(Run, "truncate_log", spoil)
    proof = sl.training.prove_resume(model(), data()[0], recipe())
    assert (proof.same_weights, proof.same_losses, proof.holds) == (True, False, False)


def test_proof_needs_the_main_thread():
    errors = []

    def prove():
        try:
            sl.training.prove_resume(model(), data()[0], recipe())
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=prove)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]
