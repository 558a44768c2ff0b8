"""`sl.open_app`: look inside one model or two in the browser."""

import importlib.util
import logging
import os
import socket
import threading
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sightline.app.gallery import Gallery
from sightline.app.nearest import nearest_layers
from sightline.app.networks import open_networks

log = logging.getLogger("sightline.app")
NEEDS = ("starlette", "uvicorn", "websockets")


@dataclass
class RunningApp:
    """The app while its server runs in a thread of its own."""

    address: str
    app: Any
    server: Any
    thread: threading.Thread
    listening: socket.socket

    def stop(self) -> None:
        """End the server; every tab loses its connection, and nothing else."""
        self.server.should_exit = True
        self.thread.join(10)
        self.listening.close()
        self.app.models.shutdown(wait=False, cancel_futures=True)
        self.app.quick.shutdown(wait=False, cancel_futures=True)

    def wait(self) -> None:
        """Until it is stopped, by Ctrl-C or by `stop`."""
        try:
            while self.thread.is_alive():
                self.thread.join(0.5)
        except KeyboardInterrupt:
            self.stop()


def open_app(
    *models: Any,
    images: str | os.PathLike[str] = "",
    results: str | os.PathLike[str] = "",
    names: Sequence[str] = (),
    port: int = 0,
    browser: bool = True,
    wait: bool = True,
) -> RunningApp:
    """Look inside one model, or two side by side, in the browser: drop an image, point at patches, switch parts off.

    `models` is everything that `sl.observe.open_model` takes; a run folder has a slider over its checkpoints. `images`
    is a folder to pick from, `results` a folder of `sl.compare` from which the nearest layers are shown, `names` are
    what to call the models. The server listens on this machine only, and its address contains a secret. Until it is
    stopped this call waits; with `wait=False` it returns at once, and `stop()` ends the server. A module that you give
    is the server's while it runs: leave it alone until then.

    >>> app = sl.open_app(sl.build("vit-nano4", classes=10), browser=False, wait=False)
    >>> app.address.startswith("http://127.0.0.1:")
    True
    >>> app.stop()
    """
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise ValueError(f"sightline open needs {missing[0]}: pip install 'sightline[app]'.")
    gallery = Gallery(os.fspath(images))
    listening = listen(port)
    try:
        networks = open_networks(models, names)
        both = results and len(networks) == 2
        nearest = nearest_layers(os.fspath(results), networks[0].own, networks[1].own) if both else []
    except BaseException:
        listening.close()
        raise
    running = start(networks, gallery, nearest=nearest, listening=listening)
    if browser:
        webbrowser.open(running.address)
    if wait:
        print(f"{' and '.join(n.name for n in networks)} at {running.address} (Ctrl-C ends it)", flush=True)
        running.wait()
    return running


def listen(port: int) -> socket.socket:
    """A socket of this machine; port 0 is any free one."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise ValueError(f"port is a number from 1 to 65535, or 0 for a free one; got {port!r}.")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
    except OSError as error:
        made.close()
        raise ValueError(f"Port {port} cannot be used ({error.strerror}): leave out --port for a free one.") from error
    return made


def start(networks: Any, gallery: Gallery, *, nearest: list[Any], listening: socket.socket) -> RunningApp:
    """Run the server in a thread; returns when it answers."""
    import uvicorn  # here: an extra

    from sightline.app.server import LARGEST_MESSAGE, App

    app = App(networks, gallery, nearest=nearest)
    config = uvicorn.Config(
        app.asgi(),
        log_level="warning",
        access_log=False,  # the token is in the address
        ws="websockets-sansio",
        ws_max_size=LARGEST_MESSAGE,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("The server did not start.")
        time.sleep(0.01)
    port = listening.getsockname()[1]
    return RunningApp(f"http://127.0.0.1:{port}/{app.token}/", app, server, thread, listening)
