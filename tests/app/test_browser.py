"""The app in a real browser: drop, hover, slide, switch, tour, save; on a laptop and on a phone."""

import copy
import io
import shutil
import time

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from tests import peers

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium here: the app is not tried in a browser"),
    pytest.mark.slow,
]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",  # a webcam that shows a test image
]
DROP = """([bytes, how]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "own.png", { type: "image/png" }));
  const about = { dataTransfer: data, clipboardData: data, bubbles: true, cancelable: true };
  document.body.dispatchEvent(how === "drop" ? new DragEvent(how, about) : new ClipboardEvent(how, about));
}"""


@pytest.fixture(scope="module")
def photograph():
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def models():
    return [peers.fill(sl.build(name, classes=10), std=0.2) for name in ("vit-nano4", "bit-nano")]


@pytest.fixture(scope="module")
def address(models):
    # copies: hooks of the library's functions in this thread must not meet those of the server's
    running = sl.open_app(*map(copy.deepcopy, models), names=["<b>ViT</b>", "CNN"], browser=False, wait=False)
    yield running.address
    running.stop()


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


class Tab:
    """A tab with everything that it said and asked for."""

    def __init__(self, browser, address, hash_="", **settings):
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda m: self.said.append(m.text))
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.goto(address + hash_)
        self.until(lambda: self.page.locator("body").get_attribute("data-ready"))

    def until(self, true, seconds=60):
        """The page forbids `eval`, by which playwright would wait."""
        end = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < end, (self.said, self.page.locator("#status").inner_text())
            self.page.wait_for_timeout(30)
        return found

    def drop(self, image, how="drop"):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        self.page.evaluate(DROP, [list(buffer.getvalue()), how])
        self.until(lambda: self.panel(1).get_attribute("data-plain"))

    def drag(self, number, start, end):
        box = self.panel(number).locator(".stage canvas").first.bounding_box()
        self.page.mouse.move(box["x"] + start[0], box["y"] + start[1])
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + end[0], box["y"] + end[1], steps=3)
        self.page.mouse.up()

    def panel(self, number):
        return self.page.locator("section.panel").nth(number)

    def told(self, number=0):
        return self.panel(number).locator("output").inner_text()

    def pixels(self, canvas, number=0):
        return self.panel(number).locator(".stage canvas").nth(canvas).evaluate("c => c.toDataURL()")

    def point(self, x, y, number=0):
        box = self.panel(number).locator(".stage canvas").first.bounding_box()
        self.page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])

    def probabilities(self, number=0):
        rows = self.panel(number).locator(".classes button")
        return rows.evaluate_all("all => all.map((row) => +row.dataset.probability)")


def test_drop_hover_slide_switch_tour_and_save(chromium, address, models, photograph, tmp_path):
    tab = Tab(chromium, address, viewport={"width": 1366, "height": 768})
    tab.drop(photograph)
    # the answers are the library's
    for number, model in enumerate(models):
        wanted = sl.predict(model, photograph)[0].probabilities
        np.testing.assert_allclose(tab.probabilities(number), wanted, atol=1e-5)
    assert tab.panel(0).locator("h2").inner_text() == "<b>ViT</b>"  # a name is text

    # hover: both models show the same place
    before = [tab.pixels(0, 0), tab.pixels(0, 1)]
    tab.point(0.9, 0.1)
    tab.until(lambda: "row 1, column 8" in tab.told())
    heads = sl.head_attention(models[0], [photograph], n=1)
    block = int(tab.told().removeprefix("Block ").split(",")[0]) - 1
    mean = np.mean([heads.row(0, block, h, 1 + 7) for h in range(4)], axis=0)
    best = int(mean.argmax())
    tab.until(
        lambda: (
            f"row {best // 8 + 1}, column {best % 8 + 1} ({100 * mean.max():.{1 if mean.max() < 0.1 else 0}f} %)"
            in tab.told()
        )
    )
    tab.until(lambda: "similar to row 1" in tab.told(1))
    tab.until(lambda: tab.pixels(0, 0) != before[0] and tab.pixels(0, 1) != before[1])

    # slide
    tab.page.get_by_label("Depth", exact=True).evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    tab.until(lambda: tab.told().startswith("Block 1,"))
    tab.page.select_option("#view", "lens")
    tab.until(lambda: "read now" in tab.told())

    # switch off and on
    tab.panel(0).get_by_role("button", name="Switch mlp 0 of").click()
    tab.until(lambda: tab.panel(0).get_attribute("data-changed"))
    with sl.observe.switch_off(models[0], "mlp 0"):
        wanted = sl.predict(models[0], photograph)[0].probabilities
    np.testing.assert_allclose(tab.probabilities()[5:], wanted, atol=1e-5)
    assert tab.panel(0).locator(".classes .up, .classes .down").count() == 5
    # a patch clicked away
    tab.page.get_by_label("click patches away").check()
    tab.panel(0).locator(".stage canvas").first.click(position={"x": 5, "y": 5})
    tab.until(lambda: "1 patches are gone" in tab.panel(0).locator(".switches").inner_text())
    with sl.observe.switch_off(models[0], "mlp 0", "token 0"):
        wanted = sl.predict(models[0], photograph)[0].probabilities
    tab.until(lambda: np.allclose(tab.probabilities()[5:], wanted, atol=1e-5))
    # painted over: both models see it
    tab.page.get_by_label("paint", exact=True).check()
    tab.drag(1, (20, 20), (60, 40))
    tab.until(lambda: len(tab.probabilities(1)) == 10)
    tab.page.get_by_role("button", name="Put all back").click()
    tab.until(lambda: len(tab.probabilities(0)) == len(tab.probabilities(1)) == 5)
    # a part of the image is chosen, then moved
    tab.page.get_by_label("move", exact=True).check()
    tab.drag(1, (10, 10), (50, 50))
    assert len(tab.probabilities(1)) == 5
    tab.drag(1, (30, 30), (80, 60))
    tab.until(lambda: len(tab.probabilities(1)) == 10)
    tab.page.get_by_role("button", name="Put all back").click()
    tab.until(lambda: len(tab.probabilities(0)) == len(tab.probabilities(1)) == 5)

    # the tour, and the link to a step
    tab.page.get_by_role("button", name="Tour").click()
    assert "1. Patches" in tab.page.locator("#step").inner_text()
    tab.page.get_by_role("button", name="Step 5: Residuals").click()
    tab.until(lambda: len(tab.probabilities(0)) == 10)
    tab.page.get_by_role("button", name="Next").click()
    tab.until(lambda: "tour=6" in tab.page.url and len(tab.probabilities(0)) == 5)
    linked = tab.page.url
    tab.page.get_by_role("button", name="Leave the tour").click()
    assert tab.page.locator("#step").is_hidden()
    other = Tab(chromium, linked)
    other.until(lambda: "6. Localization" in other.page.locator("#step").inner_text())
    assert other.page.locator("#view").input_value() == "similarity"
    other.context.close()

    # keep it
    with tab.page.expect_download(timeout=120_000) as saved:
        tab.page.get_by_role("button", name="Save as page").click()
    saved.value.save_as(tmp_path / "kept.html")
    kept = tab.context.new_page()
    kept.on("pageerror", lambda e: tab.said.append(str(e)))
    kept.goto((tmp_path / "kept.html").as_uri())
    assert kept.locator("h1").inner_text() == "What <b>ViT</b> and CNN see in your image"
    kept.locator("section#head-attention-a").scroll_into_view_if_needed()
    kept.locator("section#head-attention-a[data-ready]").wait_for()
    assert "most attention on" in kept.locator("section#head-attention-a output").inner_text()
    kept.close()
    tab.page.get_by_role("button", name="Copy as Python").click()
    tab.until(lambda: "sl.predict(model, image)" in tab.page.locator("#lines").inner_text())
    assert tab.said == []
    assert all(url.startswith((address, "blob:", "data:")) for url in tab.asked)
    assert tab.page.evaluate("document.documentElement.scrollHeight") <= 768  # one screen
    tab.context.close()


def test_a_phone_sees_all_of_it_and_a_wrong_file_is_a_sentence(chromium, address, photograph):
    tab = Tab(
        chromium, address, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    tab.page.evaluate(DROP, [[1, 2, 3], "drop"])
    tab.until(lambda: "not an image" in tab.page.locator("#status").inner_text())
    tab.page.get_by_role("button", name="Webcam").click()
    tab.until(lambda: tab.page.locator("#video").evaluate("v => v.videoWidth"))
    tab.page.get_by_role("button", name="Take a photograph").click()
    tab.until(lambda: "your image: 640 × 480" in tab.page.locator("#status").inner_text())
    tab.drop(photograph)
    tab.until(lambda: "your image: 90 × 60" in tab.page.locator("#status").inner_text())
    tab.drop(photograph.rotate(90, expand=True), "paste")
    tab.until(lambda: "your image: 60 × 90" in tab.page.locator("#status").inner_text())
    tab.drop(photograph)
    tab.until(lambda: "your image: 90 × 60" in tab.page.locator("#status").inner_text())
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    tab.panel(0).locator(".stage canvas").first.tap()
    tab.until(lambda: "from row" in tab.told())
    tab.panel(0).locator(".stage canvas").first.press("ArrowRight")  # the keyboard moves it on
    assert "from row 5, column 6" in tab.told() or "from row 4, column 6" in tab.told()
    assert tab.said == []
    tab.context.close()
