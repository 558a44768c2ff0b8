"""Position embeddings: the cells of table 8 (E26) and their resizing (E6)."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.models.positions import METHODS, resample, resample_offsets, sincos_2d
from tests.peers import fill

TINY = {"width": 16, "depth": 2, "heads": 2, "mlp_width": 16, "patch": 4, "size": 16, "classes": 3}
VALID = {("none", "stem"), ("relative", "stem"), *itertools.product(("1d", "2d"), ("stem", "every", "shared"))}
GRID = st.tuples(st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize(("kind", "at"), sorted(VALID))
def test_the_eight_cells_of_table_8_build_and_train_a_step(kind, at):
    model = fill(sl.build(sl.models.ViTConfig(**TINY, position=kind, position_at=at))).train()
    torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 16, 16)), torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    tables = [p for n, p in model.named_parameters() if "position" in n or "relative" in n]
    assert bool(tables) == (kind != "none")
    if kind == "relative":  # only the class token leaves the last block, and it has no place
        tables = tables[:-1]
    assert all(p.grad.abs().sum() > 0 for p in tables)


@pytest.mark.parametrize(
    ("kind", "at"), sorted(set(itertools.product(("none", "relative", "sincos"), ("every", "shared"))))
)
def test_the_other_cells_are_refused_with_the_reason(kind, at):
    with pytest.raises(ValueError, match="stem"):
        sl.models.ViTConfig(**TINY, position=kind, position_at=at)


def test_tables_per_layer_and_shared():
    def rows(at):
        model = sl.build(sl.models.ViTConfig(**TINY, position_at=at))
        return sum(p.numel() for n, p in model.named_parameters() if "position" in n) // 16

    assert (rows("stem"), rows("every"), rows("shared")) == (17, 34, 17)


def test_2d_is_column_and_row_tables_side_by_side():
    model = fill(sl.build(sl.models.ViTConfig(**{**TINY, "size": (8, 12)}, position="2d")))
    p = model.positions[0]
    grid = p.patches().unflatten(0, (2, 3))
    torch.testing.assert_close(grid[1, 2], torch.cat([p.along_x[2], p.along_y[1]]))


def test_relative_bias_depends_on_query_and_offset_alone():
    model = fill(sl.build(sl.models.ViTConfig(**TINY, position="relative")))
    relative = model.blocks[0].attn.relative
    q = torch.randn(1, 2, 1, 8).expand(1, 2, 17, 8)  # one query everywhere
    bias = relative(q)[0, 0]
    assert bias[0].eq(0).all()  # the class token has no place
    assert bias[:, 0].eq(0).all()
    for offset in range(-15, 16):
        line = bias[1:, 1:].diagonal(-offset)
        torch.testing.assert_close(line, line[:1].expand_as(line))
    expected = (q[0, 0, 0] * 8**-0.5) @ relative.table[15 + 3, 0]  # p_q - p_k = 3
    torch.testing.assert_close(bias[1 + 5, 1 + 2], expected)


def test_sincos_is_fixed_bounded_and_tells_places_apart():
    waves = sincos_2d((5, 7), 32)
    assert waves.abs().max() <= 1 + 1e-6  # not every CPU's sine is rounded correctly
    assert (torch.cdist(waves, waves) + torch.eye(35) > 1e-3).all()
    torch.testing.assert_close(waves[8, :8], torch.sin(10_000.0 ** -torch.linspace(0, 1, 8)))  # row 1, column 1
    model = sl.build(sl.models.ViTConfig(**TINY, position="sincos"))
    assert not any("position" in k for k in model.state_dict())


@given(grid=GRID, method=st.sampled_from(list(METHODS)))
def test_the_same_grid_is_the_identity(grid, method):
    table = torch.randn(*grid, 4)
    assert resample(table, grid, method) is table


@given(old=GRID, new=GRID, method=st.sampled_from(list(METHODS)))
def test_a_constant_grid_stays_constant(old, new, method):
    out = resample(torch.full((*old, 2), 0.7, dtype=torch.float64), new, method)
    torch.testing.assert_close(out, torch.full((*new, 2), 0.7, dtype=torch.float64), atol=1e-9, rtol=0)


@given(old=st.tuples(st.integers(2, 9), st.integers(2, 9)), new=st.tuples(st.integers(2, 12), st.integers(2, 12)))
def test_the_papers_rule_keeps_corners_and_straight_lines(old, new):
    plane = torch.stack(torch.meshgrid(torch.linspace(0, 1, old[0]), torch.linspace(0, 1, old[1]), indexing="ij"), -1)
    out = resample(plane.double(), new)
    torch.testing.assert_close(out[[0, 0, -1, -1], [0, -1, 0, -1]], plane.double()[[0, 0, -1, -1], [0, -1, 0, -1]])
    expected = torch.meshgrid(torch.linspace(0, 1, new[0]), torch.linspace(0, 1, new[1]), indexing="ij")
    torch.testing.assert_close(out, torch.stack(expected, -1).double(), atol=1e-6, rtol=0)


def test_the_papers_rule_is_scipys_zoom():
    """scipy.ndimage.zoom(order=1) samples at i * (n - 1) / (m - 1): here with numpy's linear interpolation."""
    table = np.random.default_rng(0).normal(size=(14, 14))
    places = np.arange(24) * 13 / 23
    rows = np.stack([np.interp(places, np.arange(14), column) for column in table.T], 1)
    expected = np.stack([np.interp(places, np.arange(14), row) for row in rows])
    ours = resample(torch.from_numpy(table)[..., None], (24, 24))[..., 0]
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_class_row_untouched_and_577_rows(method):
    model = fill(sl.build("vit-ti16", classes=10))
    table, new = model.positions[0].table, sl.models.resize(model, size=384, method=method).positions[0].table
    assert new.shape == (577, 192)
    assert torch.equal(new[0], table[0])
    assert new[1:].isfinite().all()


def test_equal_token_counts_are_resized_too():
    model = fill(sl.build("vit-ti16", classes=10))
    wide = sl.models.resize(model, size=(112, 448))
    assert wide.config.grid == (7, 28)
    assert wide.encoder_config.tokens == model.encoder_config.tokens
    assert not torch.allclose(wide.positions[0].table, model.positions[0].table)
    back = resample(model.positions[0].table[1:].detach().unflatten(0, (14, 14)), (7, 28)).flatten(0, 1)
    torch.testing.assert_close(wide.positions[0].table[1:], back)


@pytest.mark.parametrize(("kind", "at"), sorted(VALID | {("sincos", "stem")}))
def test_every_cell_can_be_resized_and_run(kind, at):
    model = fill(sl.build(sl.models.ViTConfig(**TINY, position=kind, position_at=at)))
    wide = sl.models.resize(model, size=(24, 8))
    assert wide(torch.randn(1, 3, 24, 8)).isfinite().all()
    same = sl.models.resize(model, size=16)
    x = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(same(x), model(x))


@given(grid=st.tuples(st.integers(2, 5), st.integers(3, 5)))
def test_relative_offsets_keep_zero_and_one_row_down(grid):
    y, x = grid
    table = torch.randn(2 * y * x - 1, 1, 2, dtype=torch.float64)
    new = (2 * y - 1, 2 * x - 1)  # every second offset of the new grid is an offset of the old one
    out = resample_offsets(table, grid, new)
    assert torch.equal(resample_offsets(table, grid, grid), table)
    middle, old_middle = new[0] * new[1] - 1, y * x - 1
    torch.testing.assert_close(out[middle], table[old_middle])
    torch.testing.assert_close(out[middle + 2 * new[1]], table[old_middle + x])
    torch.testing.assert_close(out[middle - 2], table[old_middle - 1])


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="torchvision"):
        sl.models.resize(sl.build("vit-nano4"), size=64, method="cubic")
