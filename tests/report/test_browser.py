"""The page in a real browser, opened from disk: silent, self-contained, and it moves when it is touched."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

import sightline as sl
from tests.views import makers

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium here: the page is not tried in a browser"),
    pytest.mark.slow,
]
CKA = makers.cka(6, 6)
ATTENTION = makers.head_attention()
EVIL = "<b onmouseover=alert(1)>x</b>"


def results():
    two = {"a": makers.VIT, "b": makers.CNN}
    features = {
        f"feature-pca-{k}": replace(makers.feature_pca(m), about=makers.about(m, analysis=f"feature-pca-{k}"))
        for k, m in two.items()
    }
    return features | {
        "head-attention": ATTENTION,
        "cka": replace(CKA, rows=(EVIL, *CKA.rows[1:])),
        "receptive": makers.receptive(),
        "places": makers.localization(0.5),
        "maps": makers.maps(heads=3),
        "off": makers.what_if(),
        "classes": makers.classification(classes=(EVIL, "dog", "owl")),
        "far": makers.distance(),
        "positions": makers.positions(),
        "lens": makers.logit_lens(),
        "patching": makers.patching(),
        "outliers": makers.outlier_tokens(),
        "split": makers.position_content(),
    }


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return sl.write_report(results(), tmp_path_factory.mktemp("browser"), "A page to touch")


def test_what_is_not_finite_is_told_as_what_it_is(chromium, tmp_path):
    """An infinite and an undefined cell, a radius that is none: the views say so, and nothing breaks."""
    holes = CKA.similarity.copy()
    holes[0, 0], holes[-1, -1] = np.inf, np.nan
    field = makers.receptive()
    radii = field.radii.copy()
    radii[:, 0], radii[:, 1] = np.nan, np.inf
    made = {"cka": replace(CKA, similarity=holes), "receptive": replace(field, radii=radii)}
    page = Opened(chromium, sl.write_report(made, tmp_path))
    page.point("cka", 0.01, 0.99)  # the first layer is the lowest row
    assert "CKA ∞" in page.told("cka")
    page.point("cka", 0.99, 0.01)
    assert "CKA not a number" in page.told("cka")
    assert "within not a number pixels (inner circle), 90 % within ∞" in page.told("receptive")
    assert page.said == []


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Opened:
    """A page with everything it said and asked for."""

    def __init__(self, browser, path, **settings):
        self.page = browser.new_context(**settings).new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.on("dialog", lambda d: (self.said.append("a dialog opened"), d.dismiss()))
        self.page.goto(path.as_uri())

    def section(self, name):
        """A section, come into sight and started."""
        found = self.page.locator(f"section#{name}")
        found.scroll_into_view_if_needed()
        self.page.wait_for_selector(f"section#{name}[data-ready]", timeout=20_000)
        return found

    def told(self, name, which=0):
        return self.section(name).locator("output").nth(which).inner_text()

    def point(self, name, x, y, canvas=0):
        """Move the mouse to a place of a canvas, in shares of its size."""
        target = self.section(name).locator("canvas").nth(canvas)
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        self.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])

    def pixels(self, name, canvas):
        return self.section(name).locator("canvas").nth(canvas).evaluate("c => c.toDataURL()")

    def slide(self, name, label, value):
        """To an image or a depth by its index; the page counts from 1."""
        self.section(name).get_by_label(label, exact=True).evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value + 1
        )


@pytest.fixture
def open_(chromium, report):
    made = []

    def make(**settings):
        made.append(Opened(chromium, report, **({"viewport": {"width": 1280, "height": 900}} | settings)))
        return made[-1]

    yield make
    for one in made:
        one.page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_silently_and_asks_for_nothing(open_, report, scheme):
    opened = open_(color_scheme=scheme)
    for name in [e for e in results() if not e.endswith("-b")]:
        opened.section(name)
    assert opened.said == []
    assert [url for url in opened.asked if not url.startswith(("data:", "blob:"))] == [report.as_uri()]


def test_a_cell_tells_its_layers_and_its_value(open_):
    opened = open_()
    assert "Point at a cell" in opened.told("cka")
    opened.point("cka", 4.5 / 6, 1 - 1.5 / 6)  # row 1 from below, column 4
    told = opened.told("cka")
    assert told.startswith("layer.1 × layer.4:")
    assert f"CKA {CKA.similarity[1, 4]:.3f}" in told
    assert f"mutual neighbors {CKA.knn[1, 4]:.3f}" in told
    before = opened.pixels("cka", 0)
    opened.section("cka").locator("select").select_option(label="mutual neighbors")
    assert opened.pixels("cka", 0) != before
    assert "10 nearest images" in opened.section("cka").inner_text()  # what is shown is explained


def test_a_film_tells_the_cell_and_moves_with_depth(open_):
    opened, lens = open_(), makers.logit_lens()
    opened.slide("lens", "Depth", 2)
    opened.point("lens", 2.5 / 4, 1.5 / 4)  # row 1, column 2
    top, where = int(lens.top[0, 2, 1 + 6]), lens.identifiability[0, 2, 1 + 6]
    told = opened.told("lens")
    assert told.startswith(
        f"Block 2, row 2, column 3 ({lens.name(top)}): share of classes below the target {where:.2f}"
    )
    assert "Target: owl" in told
    before = opened.pixels("lens", 1)
    opened.slide("lens", "Depth", 3)
    assert opened.pixels("lens", 1) != before
    before = opened.pixels("lens", 1)
    opened.section("lens").locator("select").select_option(label="probability of the target")
    assert opened.pixels("lens", 1) != before
    opened.slide("lens", "Image", 1)
    assert "Target: <b>cat</b>" in opened.told("lens")
    assert "the class token alone restores" in opened.told("patching")
    assert opened.told("split").startswith("Attention: block")
    opened.slide("split", "Image", 1)
    assert opened.told("split").startswith("Position alone: block")
    assert "1 of the patches is an outlier." in (opened.slide("outliers", "Depth", 2), opened.told("outliers"))[1]
    assert opened.said == []


def test_keys_move_the_cell_and_names_stay_text(open_):
    opened = open_()
    opened.point("cka", 0.5 / 6, 1 - 1.5 / 6)
    opened.section("cka").locator("canvas").first.focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.told("cka").startswith("layer.1 × layer.1:")
    opened.page.keyboard.press("ArrowDown")
    assert opened.told("cka").startswith(f"{EVIL} × layer.1:")
    assert opened.section("cka").locator("b").count() == 0
    assert opened.said == []


def test_a_patch_shows_where_every_head_looks(open_):
    opened = open_()
    opened.slide("head-attention", "Depth", 2)
    opened.section("head-attention").get_by_label("Head", exact=True).select_option(label="head 2")
    opened.point("head-attention", 0.9, 0.1)  # row 0, column 3
    row = ATTENTION.row(0, 2, 1, ATTENTION.prefix + 3)
    best = int(row.argmax())
    told = opened.told("head-attention")
    assert told.startswith("Block 3, head 2, from the patch in row 1, column 4:")
    assert f"row {best // 4 + 1}, column {best % 4 + 1}" in told
    share = float(re.search(r"\(([\d.]+) %\)", told).group(1))
    assert share == pytest.approx(100 * row.max(), abs=0.6)
    seen = [opened.pixels("head-attention", i) for i in range(3)]
    opened.slide("head-attention", "Depth", 0)
    assert all(opened.pixels("head-attention", i) != seen[i] for i in (1, 2))
    opened.section("head-attention").locator("canvas").nth(2).focus()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.told("head-attention").startswith("Block 1, head 1,")
    opened.section("head-attention").get_by_role("button", name="From the class token").click()
    assert "from the class token" in opened.told("head-attention")


def test_two_models_move_together(open_):
    opened = open_()
    opened.slide("feature-pca-a", "Depth", 2)
    assert "block 3" in opened.told("feature-pca-a", 0)
    assert "block 3" in opened.told("feature-pca-a", 1)
    before = [opened.pixels("feature-pca-a", i) for i in range(6)]
    opened.point("feature-pca-a", 0.1, 0.9)
    after = [opened.pixels("feature-pca-a", i) for i in range(6)]
    assert [a != b for a, b in zip(before, after)] == [True] * 6
    opened.slide("feature-pca-a", "Image", 1)
    assert opened.pixels("feature-pca-a", 0) != after[0]
    assert opened.pixels("feature-pca-a", 3) != after[3]


def test_depth_is_slid_through_and_places_are_pointed_at(open_):
    opened = open_()
    opened.slide("receptive", "Depth", 3)
    assert opened.told("receptive").startswith("blocks.3: half of the mass within 10 pixels")
    opened.point("places", 0.5 / 6, 0.5 / 6)
    assert opened.told("places").startswith("Row 1, column 1: 0.8")
    opened.point("off", 0.9, 0.75)
    assert "block 2 × c: CKA with the whole model 0.800 · accuracy 80 %" in opened.told("off")


def test_a_phone_sees_all_of_it(open_):
    opened = open_(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for name in ("feature-pca-a", "head-attention", "cka", "far"):
        opened.section(name)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    small = opened.page.evaluate(
        """() => [...document.querySelectorAll("svg text")].filter((t) => t.getBoundingClientRect().width > 0)
        .map((t) => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a)
        .filter((size) => size < 10.9)"""
    )
    assert small == []  # no text of a chart is too small to read
    target = opened.section("cka").locator("canvas").first
    target.tap()
    assert "CKA" in opened.told("cka")
    assert opened.said == []


def test_light_and_dark(open_):
    opened = open_(color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(background)
    opened.page.get_by_role("button", name="Light / dark").click()
    dark = opened.page.evaluate(background)
    assert np.mean([int(x) for x in re.findall(r"\d+", dark)[:3]]) < 60
    assert np.mean([int(x) for x in re.findall(r"\d+", light)[:3]]) > 200


def test_verdicts_open(open_):
    opened = open_()
    card = opened.page.locator("section.summary details.verdict").first
    assert not card.locator(".effect").first.is_visible()
    card.locator("summary").click()
    assert card.locator(".effect").first.is_visible()


def test_a_chart_tells_its_points(open_):
    opened = open_()
    section = opened.section("far")
    drawn = section.locator("figure.drawn.wide")
    chart, out = drawn.locator("> svg"), drawn.locator("output")
    assert not section.locator("figure.drawn.slim").is_visible()
    hints = opened.page.locator("figure.drawn output", has_text="Point at the chart")
    assert hints.locator("visible=true").count() == 1  # how to use a chart is said once
    points = opened.page.evaluate("() => JSON.parse(document.getElementById('points-far').textContent)")
    x, y, text = points[3]
    chart.scroll_into_view_if_needed()
    box, width = chart.bounding_box(), float(chart.get_attribute("viewBox").split()[2])
    scale = box["width"] / width
    opened.page.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
    assert out.inner_text() == text
    assert drawn.locator(".ring").get_attribute("visibility") == "visible"
    chart.focus()
    opened.page.keyboard.press("ArrowRight")
    assert out.inner_text() == points[4][2]
    assert opened.said == []


def test_axes_count_blocks_and_position_maps_stand_side_by_side(open_):
    page = open_()
    below = page.section("off").locator(".ticks.across span").all_inner_texts()
    assert below
    assert below == [str(i) for i in range(int(below[0]), len(makers.what_if().layers) + 1, int(below[0]))]
    assert "one map each" in page.section("positions").inner_text()
    assert "at its own position" in page.section("places").inner_text()
    assert page.said == []


def test_what_was_never_in_sight_is_on_paper(open_):
    page = open_(viewport={"width": 800, "height": 300})
    assert page.page.locator("section.result:not([data-ready])").count()
    page.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    page.page.wait_for_function("() => !document.querySelector('section.result:not([data-ready])')", timeout=20_000)
    assert page.page.locator("section#off canvas").count() == 1  # drawn once, not twice
    page.section("off")
    assert page.page.locator("section#off canvas").count() == 1
    assert page.said == []
