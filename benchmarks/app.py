"""The app in a headless browser: from drop to answer, from hover to drawn map, from switch to answer.

    OMP_WAIT_POLICY=PASSIVE python -m benchmarks.app [VIT] [CNN] [ROUNDS]      (which the command line sets by itself)

Medians of 20 (ROUNDS) of a ViT of DeiT-Tiny's size beside a ResNet-50 with random weights, and of vit-s16 there;
other models can be given as for `sightline open`. The page sets a mark when something begins and when it is drawn, so
that the times are those of the person in front of it. On a busy machine they say little; therefore the same requests
are answered once more without a browser, in processor time of one thread. Results go to benchmarks/results/app.json.
"""

import base64
import io
import os
import shutil
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from PIL import Image

import sightline as sl
from benchmarks.race import save
from sightline.app.gallery import Gallery
from sightline.app.networks import Network, open_networks
from sightline.app.sessions import Session

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
LIMITS = {"drop": 1.0, "hover": 0.05, "switch": 0.5}  # seconds, for DeiT-Tiny beside a ResNet on two idle cores
DROP = """([text]) => {
  const data = new DataTransfer();
  data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], "own.jpg", { type: "image/jpeg" }));
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
    """Waiting times by the page's marks."""

    def __init__(self, page: Any):
        self.page = page
        self.rows: dict[str, list[float]] = {}

    def measure(self, what: str, act: Any, first: str, last: str) -> None:
        """Do something, and wait until it is drawn."""
        self.page.evaluate("(names) => names.forEach((n) => performance.clearMarks(n))", [first, last])
        act()
        self.rows.setdefault(what, []).append(self.page.evaluate(BETWEEN, [first, last]) / 1000)

    def summary(self) -> dict[str, float]:
        return {what: statistics.median(rows) for what, rows in self.rows.items()}


def race(page: Any, rounds: int) -> dict[str, float]:
    """Every action in turn."""
    clock = Clock(page)
    canvas, switch = page.locator(".stage canvas").first, page.get_by_role("button", name="Switch mlp")
    for i in range(rounds):
        data = base64.b64encode(photograph(i)).decode()
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


def alone(networks: list[Network], rounds: int) -> dict[str, float]:
    """The same requests without a browser: medians of the processor time of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    session, rows = Session(networks, Gallery()), {}
    for i in range(rounds):
        data = photograph(i)
        requests = {
            "drop": lambda data=data: session.upload(data),
            "hover": lambda: session.handle({"do": "place", "model": 0, "x": 0.3, "y": 0.6}),
            "switch": lambda: session.handle({"do": "change", "model": 0, "off": ["mlp 5"]}),
            "back": lambda: session.handle({"do": "change", "model": 0}),
        }
        for what, request in requests.items():
            begun = time.process_time()
            for _ in request():
                pass
            rows.setdefault(what, []).append(time.process_time() - begun)
    torch.set_num_threads(threads)
    return {what: statistics.median(took[1:]) for what, took in rows.items() if what != "back"}


def run(models: list[Any], names: list[str], rounds: int) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    running = sl.open_app(*models, names=names, browser=False, wait=False)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.goto(running.address)
        page.locator("body[data-ready]").wait_for()
        page.evaluate(
            DROP, [base64.b64encode(photograph(63)).decode()]
        )  # the first pass is slower: memory is taken, kernels are chosen
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
        names = [name, "ResNet-50"]
        processor = alone(open_networks([model, cnn], names), rounds)
        seconds = run([model, cnn], names, rounds) if BROWSER else {}
        results[name] = {"seconds": seconds, "processor": processor}
        for what, cpu in processor.items():
            print(f"{name}, {what}: {seconds.get(what, float('nan')):.3f} s, processor {cpu:.3f} s", flush=True)
        save("app", results)


if __name__ == "__main__":
    main()
