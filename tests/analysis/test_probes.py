"""Probes by layer and token: the measuring room's numbers, arranged as in the paper."""

import numpy as np
import pytest
import torch

import sightline as sl


@pytest.fixture(scope="module")
def parts():
    return [sl.dataset("scenes/shape", split, num=num, size=32) for split, num in (("train", 60), ("test", 40))]


def test_the_five_curves(parts):
    twins = {"CLS": sl.build("vit-nano4", depth=2), "GAP": sl.build("vit-nano4", depth=3, pool="gap")}
    twins["CNN"] = sl.build("bit-nano")
    found = sl.analysis.layer_probes(twins, *parts, shots=3)
    assert found.accuracy.shape == (6, 3)
    both = [sl.extract(twins["CLS"], part, layers="blocks", tokens="gap") for part in parts]
    np.testing.assert_allclose(found.accuracy[1, :2], sl.probe(*both, shots=3).mean)
    assert np.isnan(found.accuracy[1, 2])
    with pytest.raises(ValueError, match="no model"):
        sl.analysis.layer_probes({}, *parts)


def test_the_first_token_of_a_mean_is_a_patch(parts):
    """Registers stand before the patches, and no head reads them."""
    model = sl.build("vit-nano4", depth=2, pool="gap", registers=2)
    found = sl.analysis.layer_probes(model, *parts, shots=3)
    both = [sl.extract(model, part, layers="blocks", tokens=0) for part in parts]
    np.testing.assert_allclose(found.accuracy[found.curves.index("model; first token")], sl.probe(*both, shots=3).mean)


def test_closed_form_is_least_squares(parts):
    """The probe equals lstsq on the same standardized features with the ridge written as extra rows."""
    model = sl.build("vit-nano4", depth=1)
    train, test = (sl.extract(model, part, layers="blocks", tokens="gap") for part in parts)
    x = train.features.double()
    mean, std = x.mean(0), x.std(0, correction=0) + 1e-5
    wide = [torch.cat([(f.features.double() - mean) / std, torch.full((len(f), 1), 100.0)], 1) for f in (train, test)]
    y = torch.nn.functional.one_hot(torch.from_numpy(train.labels), len(train.classes)).double() * 2 - 1
    rows = torch.cat([wide[0], 2.0**5 * torch.eye(wide[0].shape[1])])  # the root of l2 = 2**10
    weights = torch.linalg.lstsq(rows, torch.cat([y, torch.zeros(len(rows) - len(y), y.shape[1])])).solution
    want = ((wide[1] @ weights).argmax(1).numpy() == test.labels).mean()
    fixed = sl.evals.LinearProbe(l2=2.0**10)
    found = sl.analysis.layer_probes(model, *parts, shots=None, with_probe=fixed)
    assert found.accuracy[found.curves.index("model; mean of patches"), 0] == pytest.approx(want)
    assert "l2 = 1,024, fixed" in found.caption


def test_l2_is_tuned_on_held_out_training_images(parts):
    model = sl.build("vit-nano4", depth=1)
    train, test = (sl.extract(model, part, layers="blocks", tokens="gap") for part in parts)
    found = sl.analysis.layer_probes(model, *parts, shots=None)
    want = sl.evals.LinearProbe(l2="sweep").fit(train).score(test)
    assert found.accuracy[found.curves.index("model; mean of patches"), 0] == pytest.approx(want)
    assert "l2 tuned on held-out training images" in found.caption
    tokens = sl.analysis.token_probes(sl.build("vit-nano4", patch=16, depth=1), *parts, layers=(0,), shots=None)
    assert "l2 tuned" in tokens.caption


def test_maps_of_tokens(parts):
    model = sl.build("vit-nano4", patch=16, depth=2)
    found = sl.analysis.token_probes(model, *parts, shots=3)
    assert found.layers == ("blocks.0.mlp_sum", "blocks.1.mlp_sum")
    assert found.per_token.shape == (2, 5)
    np.testing.assert_allclose(found.mean, found.per_token[:, 1:].mean(1))
    cnn = sl.build("bit-nano", units=(1, 1), size=16)
    assert len(sl.analysis.token_probes(cnn, *parts, layers="blocks", shots=3).layers) == 2
    with pytest.raises(ValueError, match="blocks 0 to 1 only"):
        sl.analysis.token_probes(model, *parts, layers=(7,))


def test_a_hybrid_is_probed_in_its_encoder():
    train, test = (sl.dataset("scenes/shape", split, num=40, size=32) for split in ("train", "test"))
    model = sl.build("r8-vit-nano4", classes=10, depth=2)
    found = sl.analysis.layer_probes(model, train, test, shots=2)
    assert found.curves[0] == "model; class token"
    assert found.accuracy.shape == (3, 2)
