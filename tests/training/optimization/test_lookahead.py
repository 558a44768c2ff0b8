"""Lookahead: slow weights that follow half of the way."""

import pytest
import torch

import sightline as sl
from sightline.training.parallel import ProcessGroup
from sightline.training.train_state import TrainState
from tests.training.tiny import data, model, recipe


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_the_weights_are_those_of_the_published_loop(optimizer):
    train, _ = data()
    settings = {"optimizer": optimizer, "lr": 1e-2, "weight_decay": 0.1}
    plain, ours = (TrainState(model(), recipe(**settings, **more), ProcessGroup()) for more in ({}, {"lookahead": 2}))
    slow = {n: p.detach().clone() for n, p in plain.params.items()}
    batches = list(train.batches(plain.model.image, batch=16, train=sl.data.Augment()))[:4]
    for step, (images, labels) in enumerate(batches):
        for state in (plain, ours):
            state.train_step(images, labels, step=step, rate=1e-2)
        if step % 2:
            for name, p in plain.params.items():
                slow[name] = p.detach() - 0.5 * (p.detach() - slow[name])  # Adam enlarges what rounding leaves
                with torch.no_grad():
                    p.copy_(slow[name])
        assert all(torch.allclose(p, ours.params[n], atol=1e-6) for n, p in plain.params.items())


def test_a_run_resumes_bit_identically_between_two_looks_and_across_sizes():
    train, _ = data()
    r = recipe(lookahead=4, sizes=((0, 8), (0.5, 16)))  # the proof interrupts it after three of six steps
    assert sl.training.prove_resume(model(), train, r).holds


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ValueError, match="lookahead=1\\): expected 2 or more steps"):
        recipe(lookahead=1)
    with pytest.raises(
        ValueError, match="lookahead=5 never happens in 4 steps: give a smaller one, or --set lookahead=none"
    ):
        sl.fit(model(), data()[0], recipe(lookahead=5), out=tmp_path / "x")
