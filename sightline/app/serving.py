"""`sightline serve`: classify images by HTTP. Concurrent requests share a forward pass."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sightline.data.errors import BadImage
from sightline.data.images import EncodedImage, decode
from sightline.evals.accuracy import check_classifier
from sightline.evals.prediction import predict_calibrated
from sightline.weights.runs import run_temperature

LOCAL = "127.0.0.1"
EVERY_ADDRESS = ("0.0.0.0", "::")  # of this machine: clients call it by a name that we cannot know
WHERE = "POST an image to /predict (curl --data-binary @image.jpg ADDRESS/predict), or GET /health."


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server accepts.

    >>> sl.app.Limits(megabytes=5).waiting
    64
    """

    megabytes: float = 20.0  # of one upload
    waiting: int = 64  # requests in the queue; beyond that, 503
    rate: float = 100.0  # requests per second of one client; beyond that, 429
    batch: int = 16  # images in one forward pass

    def __post_init__(self) -> None:
        if wrong := [name for name, value in vars(self).items() if not value > 0]:
            raise ValueError(f"{wrong[0]}={getattr(self, wrong[0])}: expected a number above 0.")


@dataclass
class Batcher:
    """Collects the images that arrive while a batch is computed, and computes them as the next batch."""

    model: Any
    limits: Limits
    top: int
    temperature: float = field(init=False)  # of the run that the model was loaded from
    queue: "asyncio.Queue[tuple[Image.Image, asyncio.Future[Any]]]" = field(init=False)

    def __post_init__(self) -> None:
        self.temperature = run_temperature(self.model)
        self.queue = asyncio.Queue(self.limits.waiting)

    async def submit(self, image: Image.Image) -> Any:
        """The prediction of one image."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self.queue.put_nowait((image, answer))
        except asyncio.QueueFull:
            raise HTTPException(503, "The server is busy; try again.", {"Retry-After": "1"}) from None
        return await answer

    async def run(self) -> None:
        """Until canceled."""
        while True:
            waiting = [await self.queue.get()]
            while len(waiting) < self.limits.batch and not self.queue.empty():
                waiting.append(self.queue.get_nowait())
            if present := [one for one in waiting if not one[1].done()]:  # whose clients have not gone
                await self.answer(present)

    async def answer(self, waiting: list[tuple[Image.Image, "asyncio.Future[Any]"]]) -> None:
        try:
            images = [image for image, _ in waiting]
            more = {"top": self.top, "batch": len(images)}
            said: Any = await asyncio.to_thread(predict_calibrated, self.model, images, self.temperature, **more)
        except Exception as error:  # a broken model answers everybody, and does not end the server
            said = [error] * len(waiting)
        for (_, answer), prediction in zip(waiting, said):
            if not answer.done():
                answer.set_result(prediction)


@dataclass
class Rates:
    """Requests of each client within the last second."""

    most: float
    seen: dict[str, deque[float]] = field(default_factory=dict)

    def check(self, client: str) -> None:
        now = time.monotonic()
        for other in [c for c, times in self.seen.items() if times[-1] < now - 1]:
            del self.seen[other]
        times = self.seen.setdefault(client, deque())
        while times and times[0] < now - 1:
            times.popleft()
        if len(times) >= self.most:
            raise HTTPException(429, f"At most {self.most:g} requests per second.", {"Retry-After": "1"})
        times.append(now)


def create_server(
    model: Any, *, name: str = "model", top: int = 5, limits: Limits | None = None, host: str = LOCAL
) -> Starlette:
    """The server as an ASGI application, for `sl.app.serve` or a server of your own.

    POST an image to /predict and get JSON: names, class numbers and probabilities. GET /health says what is served.

    >>> model = sl.build("vit-nano4", classes=3)
    >>> sorted(route.path for route in sl.app.create_server(model).routes)
    ['/health', '/predict']
    """
    limits = limits or Limits()
    check_classifier(model)
    if top < 1:
        raise ValueError(f"top={top}: expected at least 1 class in an answer.")
    batcher, rates = Batcher(model, limits, top), Rates(limits.rate)

    async def answer(request: Request) -> Response:
        rates.check(request.client.host if request.client else "")
        image = await asyncio.to_thread(open_upload, await read_body(request, limits))
        said = await batcher.submit(image)
        if isinstance(said, Exception):
            raise HTTPException(500, "The model failed on this image.") from said
        rows = zip(said.names, said.indices, said.probabilities)
        return JSONResponse({"predictions": [{"name": n, "class": i, "probability": p} for n, i, p in rows]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": name, "classes": model.config.classes, "limits": vars(limits)})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    known = ["*"] if host in EVERY_ADDRESS else ["localhost", LOCAL, "[::1]", host]
    return Starlette(
        routes=[Route("/predict", answer, methods=["POST"]), Route("/health", health)],
        lifespan=lifespan,
        # a page of another site that resolves its name to this machine must not get answers
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=known)],
        exception_handlers={HTTPException: complain},
    )


async def complain(request: Request, error: Exception) -> Response:
    """Every refusal is JSON with one sentence."""
    assert isinstance(error, HTTPException)
    said = WHERE if error.status_code in (404, 405) else error.detail
    return JSONResponse({"error": said}, error.status_code, error.headers)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The upload, never more than allowed in memory."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise HTTPException(415, "This is a form: POST the bytes of the image alone (curl --data-binary @image.jpg).")
    most = int(limits.megabytes * 1e6)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"An image may have {limits.megabytes:g} MB.")
        parts.append(part)
    if not size:
        raise HTTPException(400, "The request has no body: POST the bytes of an image.")
    return b"".join(parts)


def open_upload(data: bytes) -> Image.Image:
    try:
        return decode(EncodedImage(data, "the upload"))
    except BadImage as error:
        raise HTTPException(415, str(error)) from error


def serve(model: Any, *, host: str = LOCAL, port: int = 8000, **how: Any) -> None:
    """Serve a model until the process is stopped. `how` goes to `sl.app.create_server`.

    >>> sl.app.serve(sl.build("vit-nano4", classes=3), top=0)
    Traceback (most recent call last):
        ...
    ValueError: top=0: expected at least 1 class in an answer.
    """
    import uvicorn

    uvicorn.run(create_server(model, host=host, **how), host=host, port=port, log_level="warning")
