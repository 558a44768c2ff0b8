import itertools
import re

import pytest

from sightline.report.sketches import HEIGHT, SKETCHES, WIDTH, places

WORD = 6  # pixels of a letter at font size 12: less than what is planned with, so that this is not the same sum


def texts(svg):
    """Boxes of all names in a sketch that are not rotated, as (words, left, top, right, bottom)."""
    svg = re.sub(r"<g transform.*?</g>", "", svg)
    for x, y, anchor, words in re.findall(r'<text x="(\d+)" y="(\d+)".*?text-anchor="(\w+)">(.*?)</text>', svg):
        wide = WORD * len(words)
        left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        yield words, left, float(y) - 9, left + wide, float(y) + 3


def along(svg):
    """Points along the colored curves of a sketch."""
    for path in re.findall(r'<path d="M([\d. L]+)" fill="none" stroke="#', svg):
        points = [tuple(map(float, p.split())) for p in path.split("L")]
        for (a, b), (c, d) in itertools.pairwise(points):
            yield from ((a + (c - a) * i / 50, b + (d - b) * i / 50) for i in range(51))


@pytest.mark.parametrize("kind", SKETCHES)
def test_no_name_in_a_sketch_touches_a_line_or_another_name(kind):
    svg = str(SKETCHES[kind]())
    boxes = list(texts(svg))
    for words, left, top, right, bottom in boxes:
        assert 0 <= left < right <= WIDTH, words
        assert 0 <= top < bottom <= HEIGHT, words
        assert not [p for p in along(svg) if left <= p[0] <= right and top <= p[1] <= bottom], words
        for other in boxes:
            apart = right <= other[1] or other[3] <= left or bottom <= other[2] or other[4] <= top
            assert apart or other[0] == words, (words, other[0])


def test_a_sketch_without_room_for_a_name_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="no room for a"):
        places(["a" * 60], [[(30.0, 60.0), (252.0, 60.0)]])
