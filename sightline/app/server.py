"""The web server behind `sightline open`: one page and one websocket, for this machine and this user only."""

import asyncio
import base64
import importlib.resources
import json
import logging
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from sightline.app.gallery import MEGABYTES, Gallery
from sightline.app.networks import Network
from sightline.app.protocol import pack, parse
from sightline.app.sessions import Session
from sightline.views.style import colors

log = logging.getLogger("sightline.app")
LOCAL = ("127.0.0.1", "localhost", "[::1]")
QUICK = ("hello", "thumbnail", "place")  # what needs no forward pass does not wait for one
FILES = {  # name in the address: room and file
    "": ("sightline.app", "page/index.html", "text/html; charset=utf-8"),
    "page.css": ("sightline.report", "page.css", "text/css"),
    "canvas.js": ("sightline.report", "canvas.js", "text/javascript"),
    "app.css": ("sightline.app", "page/app.css", "text/css"),
    "wire.js": ("sightline.app", "page/wire.js", "text/javascript"),
    "panels.js": ("sightline.app", "page/panels.js", "text/javascript"),
    "app.js": ("sightline.app", "page/app.js", "text/javascript"),
    "tour.json": ("sightline.app", "page/tour.json", "application/json"),
}
HEADERS = {
    # nothing but this server is ever asked for anything, and no other page shows this one in a frame
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class App:
    """The server's state: the shared models, the images on offer, and the open tabs."""

    def __init__(self, networks: list[Network], gallery: Gallery, *, nearest: list[Any] | None = None):
        self.networks, self.gallery, self.nearest = networks, gallery, nearest or []
        self.token = secrets.token_urlsafe(24)
        self.sessions: set[Session] = set()
        # hooks sit on the shared modules, so that one thread runs all models, one after the other
        self.models, self.quick = ThreadPoolExecutor(1, "models"), ThreadPoolExecutor(2, "places")

    def asgi(self) -> Starlette:
        """The application. Only requests that name this machine as their host are answered."""
        return Starlette(
            routes=[
                Route("/{token}/{name:path}", self.file),
                WebSocketRoute("/{token}/live", self.live),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL), www_redirect=False)],
        )

    def is_allowed(self, request: HTTPConnection) -> bool:
        """Whether it has the token and does not come from another site's page."""
        token = request.path_params.get("token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return False
        own = f"http://{request.headers.get('host', '')}"
        same_site = request.headers.get("sec-fetch-site", "none") in ("same-origin", "none")
        return same_site and request.headers.get("origin", own) == own

    async def file(self, request: Request) -> Response:
        """The page and its parts, from the package; the name in the address is looked up, never opened."""
        name = request.path_params["name"]
        if not self.is_allowed(request):
            return PlainTextResponse("Open the address that sightline open printed.", 403, HEADERS)
        if name == "palette.json":
            ramp = base64.b64encode(colors().tobytes()).decode()
            return Response(json.dumps({"ramp": ramp}), 200, HEADERS, "application/json")
        if name not in FILES:
            return PlainTextResponse("There is no such file.", 404, HEADERS)
        room, file, kind = FILES[name]
        return Response((importlib.resources.files(room) / file).read_bytes(), 200, HEADERS, kind)

    async def live(self, socket: WebSocket) -> None:
        """One tab, until it is closed."""
        if "origin" not in socket.headers or not self.is_allowed(socket):
            await socket.close(1008)
            return
        await socket.accept()
        session = Session(self.networks, self.gallery, self.nearest)
        self.sessions.add(session)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                received = await socket.receive()
                if received["type"] == "websocket.disconnect":
                    break
                task = asyncio.create_task(self.answer(socket, session, received))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except WebSocketDisconnect:
            pass
        finally:
            self.sessions.discard(session)
            session.close()
            for task in tasks:
                task.cancel()

    async def answer(self, socket: WebSocket, session: Session, received: Any) -> None:
        """Answer one message, frame by frame as they are ready; a mistake is answered with a sentence."""
        message: dict[str, Any] = {}
        loop = asyncio.get_running_loop()
        try:
            if received.get("bytes") is not None:
                frames, pool = session.upload(received["bytes"]), self.models
            else:
                message = parse(received.get("text") or "")
                session.note(message)
                frames, pool = session.handle(message), self.quick if message["do"] in QUICK else self.models
            while (frame := await loop.run_in_executor(pool, next, frames, None)) is not None:
                await socket.send_bytes(frame)
        except ValueError as error:
            await self.complain(socket, message, str(error))
        except (RuntimeError, WebSocketDisconnect, OSError) as error:
            if session in self.sessions:  # a model that fails on an image does not end the server
                log.exception("A request failed.")
                await self.complain(socket, message, f"The model failed: {error!s:.200}")
        finally:
            await loop.run_in_executor(None, close_frames, locals().get("frames"))

    async def complain(self, socket: WebSocket, message: dict[str, Any], sentence: str) -> None:
        said = {"do": "error", "error": sentence, "to": message.get("do", ""), "id": message.get("id")}
        with suppress(RuntimeError, WebSocketDisconnect):
            await socket.send_bytes(pack(said))


def close_frames(frames: Iterator[bytes] | None) -> None:
    """Let a generator that was not read to its end leave its contexts."""
    close: Callable[[], None] | None = getattr(frames, "close", None)
    if close is not None:
        with suppress(ValueError):  # it is still running in its thread, and ends there
            close()


LARGEST_MESSAGE = MEGABYTES * 1_000_000 + 1024
