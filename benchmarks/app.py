"""The app in a headless browser: from drop to answer, from hover to drawn map, from switch to answer.

    OMP_WAIT_POLICY=PASSIVE python -m benchmarks.app [VIT] [CNN] [ROUNDS]      (which the command line sets by itself)

Medians of 20 (ROUNDS) of a ViT of DeiT-Tiny's size beside a ResNet-50 with random weights, and of vit-s16 there;
other models can be given as for `sightline open`. The page sets a mark when something begins and when it is drawn, so
that the times are those of the person in front of it. Beside the waiting time stands the processor time of this process
(the server, and a little of the browser's driver), which other programs on the machine change less. Results go to
benchmarks/results/app.json.
"""

import io
import os
import shutil
import statistics
import sys
import time
from typing import Any

import numpy as np
from PIL import Image

import sightline as sl
from benchmarks.race import save

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
LIMITS = {"drop": 1.0, "hover": 0.05, "switch": 0.5}  # seconds, for DeiT-Tiny beside a ResNet on two idle cores
DROP = """([bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "own.png", { type: "image/png" }));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""
# waits in the browser: asking from here would cost processor time
BETWEEN = """async ([first, last]) => {
  const at = (name) => (performance.getEntriesByName(name)[0] || { startTime: -1 }).startTime;
  while (!(at(first) >= 0 && at(last) > at(first))) await new Promise((done) => setTimeout(done, 5));
  return at(last) - at(first);
}"""


def photograph(seed: int) -> bytes:
    """One of the scenes, as a photograph of a usual size."""
    pixels = sl.dataset("scenes/objects", num=64, size=320).images(np.array([seed % 64]))[0]
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).resize((640, 480)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


class Clock:
    """Waiting times by the page's marks, and the processor time of this process meanwhile."""

    def __init__(self, page: Any):
        self.page = page
        self.rows: dict[str, list[tuple[float, float]]] = {}

    def measure(self, what: str, act: Any, first: str, last: str) -> None:
        """Do something, and wait until it is drawn."""
        begun = time.process_time()
        self.page.evaluate("(names) => names.forEach((n) => performance.clearMarks(n))", [first, last])
        act()
        took = self.page.evaluate(BETWEEN, [first, last])
        self.rows.setdefault(what, []).append((took / 1000, time.process_time() - begun))

    def summary(self) -> dict[str, dict[str, float]]:
        each = {what: list(zip(*rows)) for what, rows in self.rows.items()}
        return {
            what: {"seconds": statistics.median(wall), "processor seconds": statistics.median(cpu), "rounds": len(wall)}
            for what, (wall, cpu) in each.items()
        }


def race(page: Any, rounds: int) -> dict[str, dict[str, float]]:
    """Every action in turn."""
    clock = Clock(page)
    canvas, switch = page.locator(".stage canvas").first, page.get_by_role("button", name="Switch mlp")
    for i in range(rounds):
        data = list(photograph(i))
        clock.measure("drop", lambda data=data: page.evaluate(DROP, [data]), "drop", "answer-1-plain")
        page.wait_for_timeout(200)
        box = canvas.bounding_box()
        x, y = (0.1 + 0.8 * ((i * k) % 17) / 17 for k in (3, 5))
        place = (box["x"] + x * box["width"], box["y"] + y * box["height"])
        clock.measure("hover", lambda place=place: page.mouse.move(*place), "hover", "place-0")
        clock.measure("switch", lambda: switch.first.click(), "change", "answer-0-changed")
        page.get_by_role("button", name="Put all back").click()
        while page.locator(".classes .up, .classes .down").count():
            page.wait_for_timeout(20)
    return clock.summary()


def run(models: list[Any], names: list[str], rounds: int) -> dict[str, dict[str, float]]:
    from playwright.sync_api import sync_playwright

    running = sl.open_app(*models, names=names, browser=False, wait=False)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.goto(running.address)
        page.locator("body[data-ready]").wait_for()
        page.evaluate(DROP, [list(photograph(63))])  # the first pass is slower: memory is taken, kernels are chosen
        page.locator("section.panel[data-model='1'][data-plain]").wait_for(timeout=120_000)
        found = race(page, rounds)
        browser.close()
    running.stop()
    return found


def main() -> None:
    given, rounds = sys.argv[1:3], int(sys.argv[3]) if len(sys.argv) > 3 else 20
    cnn = given[1] if len(given) > 1 else sl.build("bit-r50x1", classes=1000, size=224)
    results: dict[str, Any] = {"load": os.getloadavg()[0], "limits": LIMITS}
    for name in given[:1] or ("vit-ti16", "vit-s16"):
        model = name if given else sl.build(name, classes=1000, size=224)
        results[name] = run([model, cnn], [name, "ResNet-50"], rounds if name != "vit-s16" else min(rounds, 10))
        for what, row in results[name].items():
            print(f"{name} beside a ResNet: {what} {row['seconds']:.3f} s, processor {row['processor seconds']:.3f} s")
    save("app", results)


if __name__ == "__main__":
    main()
