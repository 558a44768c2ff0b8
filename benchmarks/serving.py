"""Serving: requests per second and waiting times of `sightline serve`, against a bare loop over the same images.

    python -m benchmarks.serving [MODEL] [SECONDS]

Server and clients share the machine. The bare loop decodes and predicts one image after the other, without HTTP, in
turns with the server. Results go to benchmarks/results/serving.json.
"""

import asyncio
import io
import multiprocessing
import statistics
import sys
import time

import httpx2
import numpy as np
from PIL import Image

import sightline as sl
from benchmarks.race import save

PORT, ROUNDS, CLIENTS = 8765, 3, (1, 8, 32)
URL = f"http://127.0.0.1:{PORT}"


def images(count: int = 32) -> list[bytes]:
    scenes = sl.dataset("scenes/objects", num=count, size=256)
    encoded = []
    for pixels in scenes.images(np.arange(count)):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return encoded


def run_server(name: str) -> None:
    limits = sl.app.Limits(rate=1e6, waiting=1024)
    sl.app.serve(sl.build(name), port=PORT, name=name, limits=limits)


async def load(bodies: list[bytes], clients: int, seconds: float) -> tuple[float, list[float]]:
    """Requests per second and the waiting time of each, sent by so many clients at once until time is up; the last
    answers are waited for and their time counts."""
    waits: list[float] = []
    start = time.perf_counter()
    end = start + seconds

    async def client(number: int, session: httpx2.AsyncClient) -> None:
        at = number
        while time.perf_counter() < end:
            begun = time.perf_counter()
            answer = await session.post(f"{URL}/predict", content=bodies[at % len(bodies)])
            assert answer.status_code == 200, answer.text
            waits.append(time.perf_counter() - begun)
            at += clients

    async with httpx2.AsyncClient(timeout=60) as session:
        await asyncio.gather(*(client(i, session) for i in range(clients)))
    return len(waits) / (time.perf_counter() - start), waits


def bare(model: object, bodies: list[bytes], seconds: float) -> float:
    """Images per second without HTTP."""
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        sl.predict(model, Image.open(io.BytesIO(bodies[done % len(bodies)])))
        done += 1
    return done / (time.perf_counter() - begun)


def wait_for_server() -> None:
    for _ in range(300):
        try:
            httpx2.get(f"{URL}/health").raise_for_status()
            return
        except httpx2.TransportError:
            time.sleep(0.2)
    raise SystemExit("The server did not start.")


def main(name: str, seconds: float) -> None:
    bodies, model = images(), sl.build(name)
    server = multiprocessing.get_context("spawn").Process(target=run_server, args=(name,), daemon=True)
    server.start()
    wait_for_server()
    rows: dict[str, dict] = {}
    rounds = [
        (bare(model, bodies, seconds), {c: asyncio.run(load(bodies, c, seconds)) for c in CLIENTS})
        for _ in range(ROUNDS)
    ]
    server.terminate()
    for clients in CLIENTS:
        speeds = [loads[clients][0] for _, loads in rounds]
        ratios = [speed / loop for speed, (loop, _) in zip(speeds, rounds)]
        waits = sorted(w for _, loads in rounds for w in loads[clients][1])
        rows[f"{clients} clients"] = {
            "requests per second": statistics.median(speeds),
            "times the bare loop": statistics.median(ratios),
            "median wait, ms": 1e3 * statistics.median(waits),
            "p99 wait, ms": 1e3 * waits[int(0.99 * (len(waits) - 1))],
        }
        print(f"{clients:>3} clients", {k: round(v, 2) for k, v in rows[f"{clients} clients"].items()})
    save("serving", {"model": name, "bare loop, images per second": [loop for loop, _ in rounds], **rows})


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(arguments[0] if arguments else "vit-ti16", float(arguments[1]) if len(arguments) > 1 else 5.0)
