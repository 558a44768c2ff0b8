"""Figures agree with the numbers they are drawn from; every type has one."""

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sightline as sl
from sightline.spec import _family
from sightline.views.style import (
    bare,
    enlarge_text,
    equal_steps,
    figure_style,
    fix_layout,
    mosaic,
    narrow_figures,
    new_figure,
    nice_top,
    spread_out,
)
from sightline.views.table import VIEWS
from sightline.views.tokens import place_title
from tests.views import makers

EVERY = makers.every()


def all_axes(figure):
    return [*figure.axes, *(ax for sub in getattr(figure, "subfigs", ()) for ax in all_axes(sub))]


def drawn_types():
    """Those of the package; tests define others."""
    return {kind for kind in _family(sl.Result) if kind.__module__.startswith("sightline.") and kind is not sl.Result}


def test_every_type_has_one_view_and_an_example():
    assert len({v.of for v in VIEWS}) == len(VIEWS)
    assert drawn_types() == {v.of for v in VIEWS}
    assert {type(r) for r in EVERY.values()} == drawn_types()


@pytest.mark.parametrize("name", EVERY)
def test_every_type_is_drawn_with_a_title_and_labels(name):
    result = EVERY[name]
    figure = sl.draw(result)
    axes = all_axes(figure)
    titles = [ax.get_title() for ax in axes] + [t.get_text() for t in figure.texts]
    titles += [figure.get_suptitle()]
    assert result.title in titles
    labels = [ax.get_xlabel() + ax.get_ylabel() for ax in axes]
    assert (
        any(labels) or figure.get_supxlabel() or isinstance(result, sl.analysis.AttentionMaps | sl.analysis.FeaturePCA)
    )


@pytest.mark.parametrize("name", EVERY)
def test_a_figure_of_ones_own_stays_ones_own(name):
    figure = new_figure((6, 3))
    left, right = figure.subplots(1, 2)
    right.plot([1, 2])
    assert sl.draw(EVERY[name], left) is figure
    assert right in figure.axes
    assert len(right.lines) == 1


def test_cka_shows_all_cells_from_0_to_1():
    r = makers.cka()
    image = sl.draw(r).axes[0].images[0]
    np.testing.assert_array_equal(image.get_array(), r.similarity)
    assert image.get_clim() == (0, 1)
    assert image.origin == "lower"


def test_distances_are_the_heads_of_the_outer_blocks():
    r = makers.distance()
    left, right = sl.draw(r).axes[:2]
    shown = {line.get_label(): line.get_ydata() for line in left.lines}
    for block, heads in r.sorted_heads():
        np.testing.assert_allclose(shown[f"block {block + 1}"], heads)  # people count from 1
    assert shown["uniform attention"][0] == r.uniform
    dots = right.collections[0].get_offsets()
    np.testing.assert_allclose(np.sort(dots[:, 1]), np.sort(r.pixels.ravel()))


def test_lines_are_the_rows():
    r = makers.layer_probes()
    ax = sl.draw(r).axes[0]
    for line, name, row in zip(ax.lines, r.curves, r.accuracy):
        assert line.get_label() == name
        np.testing.assert_allclose(line.get_ydata(), 100 * row)
    assert ax.get_ylim() == (0, 100)
    assert "%" in ax.get_ylabel()


def test_head_subsets_are_drawn_against_distance():
    r = makers.heads()
    line = sl.draw(r).axes[0].lines[1]
    np.testing.assert_allclose(line.get_xdata(), r.distance)
    np.testing.assert_allclose(line.get_ydata(), r.similarity[:, 1])


def test_few_shot_means():
    r = makers.fewshot()
    line = sl.draw(r).axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), 100 * r.mean)


def test_residual_has_both_kinds_of_tokens():
    r = makers.residual()
    ax = sl.draw(r).axes[1]
    shown = {line.get_label(): line for line in ax.lines}
    np.testing.assert_allclose(shown["class, mlp"].get_ydata(), r.class_token[0][1::2])
    np.testing.assert_allclose(shown["patches, attention"].get_ydata(), r.ratio[::2])


def test_residual_without_any_ratio_says_so_in_place_of_empty_axes():
    """An untrained network of timm: the last norm of every branch starts at zero."""
    r = makers.residual()
    none = np.full_like(r.ratio, np.nan)
    r = replace(r, ratio=none, per_token=np.full_like(r.per_token, np.nan), class_token=r.class_token * np.nan)
    (ax,) = sl.draw(r).axes
    assert [text.get_text() for text in ax.texts] == ["no addition has a ratio"]
    assert not ax.lines


def test_vtab_has_the_papers_rows_beside_it():
    ax = sl.draw(sl.evals.vtab_references()[1]).axes[0]
    labels = [line.get_label() for line in ax.lines]
    assert "ViT-H/14 (JFT)" in labels
    assert len(ax.patches) == 19


def test_any_name_will_do(tmp_path):
    figure = sl.draw(makers.classification(classes=("$x^$", "a$b", "猫 🐈")))
    assert "$x^$" in [label.get_text() for label in figure.axes[0].get_yticklabels()]
    sl.save_figure(makers.classification(classes=("$x^$", "a$b", "猫 🐈")), tmp_path / "names")


def test_curves_are_what_was_logged():
    r = makers.curves()
    axes = {ax.get_ylabel(): ax for ax in sl.draw(r).axes}
    assert set(axes) == {"loss", "top1", "lr"}
    np.testing.assert_allclose(axes["top1"].lines[0].get_xdata(), [10, 30, 50])


@dataclass(frozen=True, kw_only=True)
class Unheard(sl.Result):
    """A type without a view."""

    step: np.ndarray
    loss: np.ndarray
    more: dict = field(default_factory=dict)


def test_an_unknown_type_is_drawn_anyway():
    r = Unheard(title="Curves", caption="", step=np.arange(5), loss=np.arange(5) ** 2.0, more={"lr": [1.0] * 5})
    axes = sl.draw(r).axes
    assert [ax.get_title() for ax in axes] == ["loss", "lr"]
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), r.loss)
    assert axes[0].get_xlabel() == "step"
    empty = sl.draw(sl.Result(title="Nothing", caption=""))
    assert "no numbers" in empty.axes[0].get_xlabel()


def test_what_is_no_result_is_refused():
    with pytest.raises(ValueError, match="takes a result"):
        sl.draw([1, 2])


def test_figures_are_saved_with_their_data(tmp_path):
    r = makers.heads()
    files = sl.save_figure(r, tmp_path / "heads.png")
    assert [f.name for f in files] == ["heads.png", "heads.svg", "heads.npz"]
    np.testing.assert_array_equal(sl.Result.load(files[2]).similarity, r.similarity)
    again = (tmp_path / "heads.svg").read_bytes()
    sl.save_figure(r, tmp_path / "heads")
    assert (tmp_path / "heads.svg").read_bytes() == again


def test_drawing_leaves_the_users_settings_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    sl.draw(makers.heads())
    assert dict(mpl.rcParams) == before


@given(count=st.integers(1, 20), columns=st.integers(1, 7), side=st.integers(1, 4))
def test_a_mosaic_holds_every_tile(count, columns, side):
    tiles = np.arange(1, count + 1)[:, None, None] * np.ones((1, side, side))
    found = mosaic(tiles, columns)
    assert {*np.unique(found[np.isfinite(found)])} == {*np.arange(1.0, count + 1)}
    assert np.isfinite(found).sum() == count * side * side


@given(count=st.integers(1, 300), most=st.integers(1, 20))
def test_spread_out(count, most):
    found = spread_out(count, most)
    assert len(found) <= most
    assert found[0] == 0
    assert all(0 <= i < count for i in found)
    assert most == 1 or found[-1] == count - 1


def test_scales_are_shared_unless_nothing_would_show():
    assert nice_top(np.array([0.6])) == 1
    assert nice_top(np.array([0.15, np.nan])) == 0.2
    assert nice_top(np.array([np.nan])) == 1


def test_maps_are_titled_by_place_counted_from_1_and_titles_stay_in_their_column():
    assert place_title("block 3") == "block 4"
    assert place_title("inner.layer4.0") == "unit 1"
    axes = new_figure((3.7, 2.0)).subplots(1, 4)
    bare(axes[0], "American Staffordshire terrier")
    assert axes[0].get_title() == "American\n…"
    bare(axes[1], "position alone")
    assert axes[1].get_title() == "position\nalone"


@pytest.mark.parametrize("count", [0, 1, 3, 7, 8, 12, 24, 33])
def test_ticks_are_in_equal_steps(count):
    ticks = equal_steps(count, 7)
    assert len(ticks) <= 7
    assert len(set(np.diff([0, *ticks]))) <= 1
    assert count == 0 or ticks[-1] <= count < ticks[-1] + ticks[0]


@pytest.mark.parametrize("name", EVERY)
def test_labels_of_axes_are_within_a_phone(name):
    """As the page draws them: a label that is cut off is read wrongly, numbers that touch are one number."""
    with figure_style(), narrow_figures():
        figure = sl.draw(EVERY[name], title=False)
        enlarge_text(figure)
        fix_layout(figure)
        figure.draw_without_rendering()
        for ax in all_axes(figure):
            labels = [axis.label for axis in (ax.xaxis, ax.yaxis) if axis.label.get_text() and ax.axison]
            for box in (label.get_window_extent() for label in labels):
                assert box.x0 > -2
                assert box.x1 < figure.bbox.x1 + 2
            numbers = [l for l in ax.get_xticklabels() if l.get_text().isdigit() and l.get_visible() and ax.axison]
            within = [l for l in numbers if ax.bbox.x0 - 1 <= l.get_window_extent().x0 + 4 <= ax.bbox.x1 + 1]
            boxes = sorted((l.get_window_extent() for l in within), key=lambda box: box.x0)
            assert all(a.x1 <= b.x0 for a, b in itertools.pairwise(boxes)), [l.get_text() for l in within]
