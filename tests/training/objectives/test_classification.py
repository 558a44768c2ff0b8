"""Losses against torch, what a recipe sets on a model, and the first loss of a new head."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.models.layers import DropPath
from sightline.training.objectives.setup import build_objective, configure_model, initialize_head
from tests.training.tiny import data, losses, model, recipe

CASES = st.integers(0, 10_000)


def drawn(seed, n=5, k=7):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, k, generator=generator), torch.randint(k, (n,), generator=generator)


@given(CASES, st.floats(0, 0.9))
def test_softmax_is_torch_s(seed, smoothing):
    logits, labels = drawn(seed)
    ours = sl.training.classification_loss(logits, labels, smoothing=smoothing)
    shares = (1 - smoothing) * F.one_hot(labels, 7) + smoothing / 7
    torch.testing.assert_close(ours, -(shares * logits.log_softmax(1)).sum(1).mean())
    torch.testing.assert_close(
        ours, sl.training.classification_loss(logits, F.one_hot(labels, 7).float(), smoothing=smoothing)
    )


@given(CASES, st.floats(0, 0.9))
def test_sigmoid_is_summed_over_classes(seed, smoothing):
    logits, labels = drawn(seed)
    shares = (1 - smoothing) * F.one_hot(labels, 7) + smoothing / 7
    by_hand = -(shares * F.logsigmoid(logits) + (1 - shares) * F.logsigmoid(-logits)).sum(1).mean()
    torch.testing.assert_close(
        sl.training.classification_loss(logits, labels, loss="sigmoid", smoothing=smoothing), by_hand
    )


def test_sigmoid_takes_tables_of_labels():
    logits, _ = drawn(0)
    table = torch.rand(5, 7) > 0.5
    expected = F.binary_cross_entropy_with_logits(logits, table.float()) * 7
    torch.testing.assert_close(sl.training.classification_loss(logits, table, loss="sigmoid"), expected)


def test_mixed_labels_cost_the_mix_of_their_losses():
    logits, labels = drawn(0)
    mixed = 0.3 * F.one_hot(labels, 7) + 0.7 * F.one_hot(labels.flip(0), 7)
    for loss in ("softmax", "sigmoid"):
        a, b = (sl.training.classification_loss(logits, y, loss=loss) for y in (labels, labels.flip(0)))
        torch.testing.assert_close(sl.training.classification_loss(logits, mixed, loss=loss), 0.3 * a + 0.7 * b)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_first_loss_of_a_zero_head(classes):
    zero, labels = torch.zeros(3, classes), torch.tensor([0, 1, 1])
    for loss, expected in (("softmax", math.log(classes)), ("sigmoid", classes * math.log(2))):
        found = sl.training.classification_loss(zero, labels, loss=loss).item()
        assert found == pytest.approx(expected, rel=1e-5)  # a sum of 1000 in float32


def test_head_bias_is_what_a_run_starts_with(tmp_path):
    run = sl.fit(model(), data()[0], recipe(steps=1, loss="sigmoid", head_bias=-5.0), out=tmp_path / "run")
    expected = -(F.logsigmoid(torch.tensor(-5.0)) + 9 * F.logsigmoid(torch.tensor(5.0))).item()
    assert losses(run)[0] == pytest.approx(expected, abs=1e-5)


def test_head_bias_is_for_new_heads():
    m = model()
    torch.nn.init.normal_(m.head.weight)
    with pytest.raises(ValueError, match=r"head_bias=-5.*not new"):
        initialize_head(m, recipe(head_bias=-5))
    bit = sl.build("bit-nano", classes=4)
    initialize_head(bit, recipe(head_bias=-2))
    assert bit.head.bias.eq(-2).all()


def test_dropout_and_stochastic_depth():
    m = model(depth=3)
    configure_model(m, recipe(dropout=0.25, drop_path=0.2, checkpointing=True))
    assert {d.p for d in m.modules() if isinstance(d, torch.nn.Dropout)} == {0.25}
    rates = [{d.rate for d in block.modules() if isinstance(d, DropPath)} for block in m.blocks]
    np.testing.assert_allclose([list(r) for r in rates], [[0], [0.1], [0.2]])  # rising with depth
    assert m.checkpointing
    configure_model(m, recipe())  # None: the model's own
    assert {d.p for d in m.modules() if isinstance(d, torch.nn.Dropout)} == {0.25}
    configure_model(m, recipe(dropout=0))
    assert {d.p for d in m.modules() if isinstance(d, torch.nn.Dropout)} == {0.0}


def test_what_a_cnn_has_not():
    for changes in ({"dropout": 0.1}, {"drop_path": 0.1}):
        with pytest.raises(ValueError, match=next(iter(changes))):
            configure_model(sl.build("bit-nano", classes=4), recipe(**changes))
    configure_model(sl.build("bit-nano", classes=4), recipe(dropout=0.0))


@pytest.mark.parametrize(
    ("name", "kind"), [("classify", "ClassificationObjective"), ("masked", "MaskedPatches"), ("mae", "MAE")]
)
def test_every_objective_holds_the_model_itself(name, kind):
    m = model()
    made = build_objective(m, recipe(task=name))
    assert type(made).__name__ == kind
    assert made.model is m


def test_several_labels_train_and_are_measured(tmp_path):
    stack = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    table = np.random.default_rng(1).random((40, 10)) < 0.3
    train, val = (
        sl.data.Arrays(stack, table).subset(indices=range(24)),
        sl.data.Arrays(stack, table).subset(indices=range(24, 40)),
    )
    settings = recipe(loss="sigmoid", augment=sl.data.Augment(crop_area=None, mixup=0.2))
    m = model()
    last = sl.fit(m, train, settings, val=val, out=tmp_path / "run").summary()
    with torch.inference_mode():
        logits = torch.cat([m(x) for x, _ in val.batches(m.image, batch=16)])
    expected = F.binary_cross_entropy_with_logits(logits, torch.tensor(val.labels).float(), reduction="sum") / 16
    assert last["val/loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert last["val/accuracy"] == val.labels[np.arange(16), logits.argmax(1).numpy()].mean()
