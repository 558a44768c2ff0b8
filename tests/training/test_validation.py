"""Validation during a run says what `sl.evaluate` says of the weights that are kept."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline.training.parallel import ProcessGroup
from sightline.training.train_state import TrainState
from sightline.training.validation import validate
from tests.training.tiny import data, model, recipe


def shaken(**changes):
    """A model whose predictions differ from image to image."""
    m = model(**changes)
    with torch.no_grad():
        for p in m.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    return m.eval()


@pytest.mark.parametrize("changes", [{}, {"batch": 7}, {"micro": 3}, {"smoothing": 0.3, "dropout": 0.5}])
def test_is_what_evaluate_says(changes):
    m, (_, val) = shaken(), data()
    exact = sl.evaluate(m, val)
    found = validate(TrainState(m, recipe(**changes), ProcessGroup()), val)
    assert 0 < exact.top1 < 1
    assert found["val/accuracy"] == exact.top1
    with torch.inference_mode():
        logits = torch.cat([m.eval()(x) for x, _ in val.batches(m.image, batch=24)])
    expected = F.cross_entropy(logits, torch.tensor(val.labels)).item()
    assert found["val/loss"] == pytest.approx(expected, rel=1e-5)


def test_logged_numbers_are_those_of_the_kept_weights(tmp_path):
    train, val = data()
    run = sl.fit(shaken(), train, recipe(lr=3e-3, ema=0.7, eval_every=2), val=val, out=tmp_path / "run")
    assert run.rows()[-1]["val/accuracy"] == pytest.approx(sl.evaluate(run.model, val).top1, rel=1e-8)  # nine digits
    best = run.about["ended"]["best"]
    assert best["score"] == sl.evaluate(sl.load(run.path / "best.safetensors"), val).top1
    assert best["score"] == pytest.approx(max(row.get("val/accuracy", 0) for row in run.rows()), rel=1e-8)


def test_average_is_measured_where_there_is_one():
    (_, val), m = data(), shaken()
    state = TrainState(m, recipe(ema=0.9), ProcessGroup())
    before = validate(state, val)
    with torch.no_grad():
        for p in m.parameters():
            p.zero_()
    assert validate(state, val) == before
    assert not any(p.any() for p in m.parameters())  # and was taken out again


def test_training_goes_on_in_its_own_mode():
    (_, val), state = data(), TrainState(model(dropout=0.5), recipe(), ProcessGroup())
    validate(state, val)
    assert state.objective.training
    assert all(p.requires_grad for p in state.trainable)


def test_sigmoid_runs_are_measured_by_their_own_loss():
    m, (_, val) = shaken(), data()
    found = validate(TrainState(m, recipe(loss="sigmoid"), ProcessGroup()), val)
    with torch.inference_mode():
        logits = torch.cat([m(x) for x, _ in val.batches(m.image, batch=16)])
    expected = sl.training.classification_loss(logits, torch.tensor(val.labels), loss="sigmoid").item()
    assert found["val/loss"] == pytest.approx(expected, rel=1e-5)
    assert found["val/accuracy"] == np.mean(logits.argmax(1).numpy() == val.labels)


@pytest.mark.parametrize("task", ["masked", "mae"])
def test_masked_tasks_hide_the_same_patches_each_time(task):
    state, (_, val) = TrainState(shaken(), recipe(task=task, batch=7), ProcessGroup()), data()
    found = validate(state, val)
    assert set(found) == {"val/loss"}
    assert validate(state, val) == found
