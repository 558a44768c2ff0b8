"""The points of a drawing stand where the SVG has them, and say the numbers that were drawn."""

import io
import re

import pytest

from sightline.views.points import MOST, points
from sightline.views.style import figure_style, new_figure


def saved(figure):
    buffer = io.StringIO()
    with figure_style():
        figure.savefig(buffer, format="svg")
    return buffer.getvalue(), points(figure)


def test_a_line_is_where_the_svg_has_it():
    figure = new_figure((5, 3))
    ax = figure.subplots()
    ax.plot([0, 1, 2], [5.0, 7.5, 6.0], label="ViT", gid="the-line")
    ax.axhline(6.5)
    ax.set(xlabel="block", ylabel="share")
    svg, found = saved(figure)
    path = re.search(r'id="the-line">\s*<path d="([^"]*)"', svg)[1]
    at = [tuple(map(float, pair)) for pair in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
    assert [p[2] for p in found] == ["ViT: block 0, share 5", "ViT: block 1, share 7.5", "ViT: block 2, share 6"]
    for (x, y, _), expected in zip(found, at, strict=True):
        assert (x, y) == pytest.approx(expected, abs=0.1)


def test_bars_and_clouds_and_names_of_places():
    figure = new_figure((5, 3))
    left, right = figure.subplots(1, 2)
    left.barh([0, 1], [0.25, 0.5])
    left.set_yticks([0, 1], ["cat", "dog"])
    right.scatter([1.0], [2.0], label="images")
    _, found = saved(figure)
    assert [p[2] for p in found] == ["0.25, cat", "0.5, dog", "images: 1, 2"]


def test_long_lines_answer_at_some_of_their_points():
    figure = new_figure((5, 3))
    figure.subplots().plot(range(5000))
    _, found = saved(figure)
    assert len(found) == MOST
    assert found[0][2] == "0, 0"
    assert found[-1][2] == "4,999, 4,999"
