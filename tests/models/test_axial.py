"""Axial attention (ViT, appendix D.6) against a definition of its own: loops over the lines of the grid."""

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from tests.peers import fill

CASES = {
    "class token": {},
    "mean of patches": {"pool": "gap"},
    "registers, positions in every block": {"registers": 2, "position_at": "every"},
    "wide images": {"size": (16, 24), "pool": "gap", "qk_norm": True},
}


def build(**changes):
    return fill(sl.build("vit-nano4", **{"classes": 5, "depth": 1, "size": 16, "attention": "axial", **changes}))


def line_of(token: int, c, along_rows: bool) -> int | None:
    """The row or column of a token; None for a prefix token."""
    cell = token - c.prefix
    return None if cell < 0 else cell // c.grid[1] if along_rows else cell % c.grid[1]


def attend(block, x, c, along_rows):
    """One attention, token by token: of its own line and the prefix tokens; a prefix token of everything."""
    qkv = F.linear(x, block.attn.qkv.weight, block.attn.qkv.bias)
    size = c.width // c.heads
    out = torch.zeros_like(x)
    for image in range(len(x)):
        for head in range(c.heads):
            q, k, v = (qkv[image, :, i * c.width + head * size :][:, :size] for i in range(3))
            if c.qk_norm:
                q, k = block.attn.q_norm(q), block.attn.k_norm(k)
            for token in range(c.tokens):
                own = line_of(token, c, along_rows)
                seen = [t for t in range(c.tokens) if own is None or line_of(t, c, along_rows) in (None, own)]
                weights = (k[seen] @ q[token] / size**0.5).softmax(0)
                out[image, token, head * size : (head + 1) * size] = weights @ v[seen]
    return F.linear(out, block.attn.out.weight, block.attn.out.bias)


def definition(model, x):
    """Row attention and an MLP, then column attention and an MLP, `depth` times."""
    c = model.config
    x = model.sequence(model.embed(x))
    for i, block in enumerate(model.blocks):
        if c.position_at == "every":
            x = model.positions[i](x)
        x = x + attend(block, block.norm1(x), c, along_rows=i % 2 == 0)
        x = x + block.mlp(block.norm2(x))
    x = model.norm(x)
    return model.head(x[:, 0] if c.pool == "cls" else x[:, c.prefix :].mean(1))


@pytest.mark.parametrize("case", CASES)
def test_equals_its_definition(case):
    model = build(**CASES[case]).double().eval()
    x = torch.randn(1, 3, *model.config.size, dtype=torch.float64)
    with torch.no_grad():
        plain, expected = model(x), definition(model, x)
        torch.testing.assert_close(plain, expected, atol=1e-10, rtol=0)
        with sl.record(model, "blocks.*.attn.probs") as tape:  # the explicit way, all tokens
            torch.testing.assert_close(model(x), expected, atol=1e-10, rtol=0)
    c = model.config
    assert len(model.blocks) == len(tape) == c.layers == 2 * c.depth
    for i, probs in enumerate(tape.values()):
        torch.testing.assert_close(probs.sum(-1), torch.ones_like(probs[..., 0]))
        lines = [line_of(t, c, i % 2 == 0) for t in range(c.tokens)]
        seen = torch.tensor([[a is None or b is None or a == b for b in lines] for a in lines])
        assert (probs[..., seen] > 0).all()
        assert (probs[..., ~seen] == 0).all()


def test_parameters_and_products_are_counted():
    c = sl.models.config("vit-nano4", attention="axial", classes=10)
    axial, full = sl.cost(c), sl.build("vit-nano4", classes=10, device="meta")
    block = sum(p.numel() for p in full.blocks[0].parameters())
    assert axial.parameters == sum(p.numel() for p in full.parameters()) + 6 * block
    pairs = 2 * (64 * (8 + 1) + 1 * 65)  # a patch: its line and the class token; the class token: all
    assert axial.attention_macs == 2 * 6 * pairs * 64
    dense = 12 * 65 * (4 * 64 * 64 + 2 * 64 * 128)
    assert axial.macs == axial.attention_macs + dense + 64 * 48 * 64 + 64 * 10
    (row,) = sl.models.attention_growth(c, patches=(4,))
    assert (row["attention_macs"], row["macs"]) == (axial.attention_macs, axial.attention_macs + dense)


def test_it_resizes_saves_and_says_what_cannot_be(tmp_path):
    model = build().eval()
    wide = sl.models.resize(model, size=(16, 32))
    assert wide(torch.zeros(1, 3, 16, 32)).shape == (1, 5)
    again = sl.load(sl.save(model, tmp_path / "m.safetensors"))
    assert again.config.attention == "axial"
    for to in ("npz", "timm", "hf", "torchvision"):
        with pytest.raises(sl.weights.WeightsError, match="along rows and columns"):
            sl.save(model, tmp_path / "m.npz", to=to)
    with pytest.raises(ValueError, match="relative is for all pairs"):
        sl.build("vit-nano4", attention="axial", position="relative")
    with pytest.raises(ValueError, match="MAE drops tokens"):
        sl.training.MAE(model)
    with pytest.raises(ValueError, match="attends along rows and columns: a token cannot be taken out"):
        sl.what_if(model, sl.dataset("scenes/shape", num=4, size=16), "token 3")
    assert "attention" not in repr(model.config)  # fingerprints of earlier models stay


def test_it_learns():
    model, x, y = build(), torch.randn(8, 3, 16, 16), torch.arange(8) % 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        losses.append(F.cross_entropy(model.train()(x), y))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2
    assert all(p.grad is not None and p.grad.any() for p in model.blocks[0].attn.parameters())


def test_attention_analyses_read_both_directions():
    data = sl.dataset("scenes/shape", num=4, size=16)
    far = sl.attention_distance(build(), data)
    assert far.pixels.shape == (2, 4)
    uniform = (abs(torch.arange(4)[:, None] - torch.arange(4)) * 4.0).mean()  # along one line of four patches
    assert abs(far.pixels.mean() - uniform) < 0.5
    found = sl.what_if(build(), data, ["block 1", "head 1.0", "attention 0"])
    assert found.similarity.shape == (3, 2)
