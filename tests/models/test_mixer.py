"""MLP-Mixer: against its definition written out once more, and what a fixed number of patches forbids."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from tests.peers import fill


def google_forward(w: dict[str, np.ndarray], x: torch.Tensor, blocks: int) -> torch.Tensor:
    """The paper's equations on arrays as JAX stores them: kernels (in, out), the stem's (rows, columns, in, out)."""
    t = {k: torch.from_numpy(v) for k, v in w.items()}

    def norm(y, at):
        y = y - y.mean(-1, keepdim=True)
        return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * t[at + "/scale"] + t[at + "/bias"]

    def mlp(y, at):
        y = F.gelu(y @ t[at + "/Dense_0/kernel"] + t[at + "/Dense_0/bias"], approximate="tanh")
        return y @ t[at + "/Dense_1/kernel"] + t[at + "/Dense_1/bias"]

    p, q = t["stem/kernel"].shape[:2]
    patches = x.unfold(2, p, p).unfold(3, q, q).permute(0, 2, 3, 4, 5, 1)  # (b, i, j, p, q, c)
    y = torch.einsum("bijpqc,pqcd->bijd", patches, t["stem/kernel"]).flatten(1, 2) + t["stem/bias"]
    for i in range(blocks):
        at = f"MixerBlock_{i}/"
        y = y + mlp(norm(y, at + "LayerNorm_0").transpose(1, 2), at + "token_mixing").transpose(1, 2)
        y = y + mlp(norm(y, at + "LayerNorm_1"), at + "channel_mixing")
    return norm(y, "pre_head_layer_norm").mean(1) @ t["head/kernel"] + t["head/bias"]


def google_arrays(width=24, depth=2, hidden=10, mlp=36, grid=(4, 4), patch=8, classes=7) -> dict[str, np.ndarray]:
    """A file as Google writes it, with random values in float64."""
    n, random = grid[0] * grid[1], np.random.default_rng(0)
    shapes = {"stem/kernel": (patch, patch, 3, width), "head/kernel": (width, classes)}
    shapes |= {"pre_head_layer_norm/scale": (width,)}
    for i in range(depth):
        at = f"MixerBlock_{i}/"
        shapes |= {at + f"LayerNorm_{k}/scale": (width,) for k in (0, 1)}
        for name, wide, inner in (("token_mixing", n, hidden), ("channel_mixing", width, mlp)):
            shapes |= {at + f"{name}/Dense_0/kernel": (wide, inner), at + f"{name}/Dense_1/kernel": (inner, wide)}
    for key in list(shapes):
        shapes[key.rpartition("/")[0] + "/bias"] = shapes[key][-1:]
    return {k: 0.3 * random.standard_normal(s) for k, s in shapes.items()}


def test_googles_npz_gives_the_numbers_of_the_definition(tmp_path):
    arrays = google_arrays()
    np.savez(tmp_path / "Mixer.npz", **arrays)
    model = sl.load(tmp_path / "Mixer.npz")
    c = model.config
    assert (c.width, c.depth, c.token_width, c.mlp_width, c.size, c.patch, c.classes) == (
        24, 2, 10, 36, (32, 32), (8, 8), 7,
    )  # fmt: skip
    assert model.image.mean == (0.5, 0.5, 0.5)
    x = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        ours = model(x)
    torch.testing.assert_close(ours, google_forward(arrays, x, 2), atol=1e-10, rtol=0)
    back = np.load(sl.save(model, tmp_path / "back.npz", to="npz"))
    assert set(back.files) == set(arrays)
    assert all(np.array_equal(back[k], arrays[k]) for k in arrays)


def test_a_grid_that_is_not_square_needs_the_size(tmp_path):
    np.savez(tmp_path / "wide.npz", **google_arrays(grid=(2, 4)))
    with pytest.raises(sl.weights.WeightsError, match="size="):
        sl.load(tmp_path / "wide.npz")
    assert sl.load(tmp_path / "wide.npz", size=(16, 32)).config.grid == (2, 4)


def test_only_token_mixing_moves_information_between_patches():
    model = fill(sl.build("mixer-nano4", classes=0, depth=1)).double()
    block = model.blocks[0]
    x = torch.randn(64, 64, dtype=torch.float64)
    alone = torch.autograd.functional.jacobian(lambda t: block.mlp(block.norm2(t[None]))[0, 5], x)
    assert alone[:, 5].any()
    assert not alone[:, [i for i in range(64) if i != 5]].any()
    mixed = torch.autograd.functional.jacobian(lambda t: block.mix(block.norm1(t[None]).mT).mT[0, 5], x)
    assert mixed.abs().amax((0, 2)).min() > 0


def test_a_small_mixer_costs_what_the_small_vit_costs():
    mixer = sl.cost("mixer-nano4")
    assert mixer.macs == pytest.approx(16_284_928, rel=0.03)  # of vit-nano4
    stem, tokens, channels = 64 * 48 * 64, 6 * 64 * 2 * 64 * 64, 6 * 64 * 2 * 64 * 256
    assert (mixer.macs, mixer.tokens, mixer.attention_macs) == (stem + tokens + channels + 64_000, 64, 0)


def test_the_number_of_patches_is_fixed(tmp_path):
    model = fill(sl.build("mixer-nano4", classes=10)).eval()
    with pytest.raises(ValueError, match="takes images of 32 x 32; got 48 x 48"):
        model(torch.zeros(1, 3, 48, 48))
    with pytest.raises(ValueError, match="cannot change from 8 x 8 to 12 x 12 patches"):
        sl.models.resize(model, size=48)
    file = sl.save(model, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="cannot change from 8 x 8"):
        sl.load(file, size=48)
    small, smooth = sl.load(file), torch.nn.functional.interpolate(torch.randn(1, 3, 2, 2), 32, mode="bicubic")
    large = sl.models.resize(small, size=64, patch=8)  # as many patches
    wide = torch.nn.functional.interpolate(smooth, 64, mode="bicubic", antialias=True)
    assert large.config.grid == (8, 8)
    torch.testing.assert_close(large(wide), small(smooth), atol=0.05, rtol=0.1)


def test_a_new_head_and_the_papers_names(tmp_path):
    file = sl.save(fill(sl.build("mixer-nano4", classes=10)), tmp_path / "m.safetensors")
    tuned = sl.load(file, classes=("a", "b"))
    assert (tuned.config.classes, tuned.head.weight.abs().sum().item()) == (2, 0)
    assert sl.models.config("Mixer-B/16") == sl.models.config("Mixer-B_16") == sl.models.config("mixer-b16")
    with pytest.raises(ValueError, match="MixerConfig has no field 'pool'"):
        sl.build("mixer-nano4", pool="cls")


def test_same_seed_same_model_and_checkpointing_changes_nothing():
    a, b = (sl.build("mixer-nano4", classes=3, seed=5, checkpointing=c) for c in (False, True))
    x = torch.randn(2, 3, 32, 32)
    for m in (a, b):
        torch.nn.init.normal_(m.head.weight, generator=torch.Generator().manual_seed(0))
        m.train()(x).square().sum().backward()
    assert torch.equal(a.blocks[0].mix.fc1.weight, b.blocks[0].mix.fc1.weight)
    torch.testing.assert_close(a.blocks[0].mix.fc1.weight.grad, b.blocks[0].mix.fc1.weight.grad)
