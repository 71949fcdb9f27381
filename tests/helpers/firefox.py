"""A stock Firefox, driven by WebDriver BiDi (https://www.w3.org/TR/webdriver-bidi/): Playwright drives only its own."""

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

# Its path; None without one.
FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
PATIENCE = 240  # s for an answer


class Firefox:
    """An open page.

    Attributes:
        errors: Errors and warnings of the pages' scripts and of the console.
    """

    def __init__(self, socket) -> None:
        self._socket = socket
        self._ids = itertools.count()
        self.errors: list[str] = []
        self._call("session.new", capabilities={})
        self._call("session.subscribe", events=["log.entryAdded"])
        tree = self._call("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        sent = next(self._ids)
        self._socket.send(json.dumps({"id": sent, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE))
            if message.get("method") == "log.entryAdded":
                entry = message["params"]
                if entry["level"] in ("error", "warn"):
                    self.errors.append(f"{entry['level']}: {entry['text']}")
            if message.get("id") != sent:
                continue
            if message["type"] == "error":
                raise RuntimeError(f"{method}: {message['error']}: {message['message']}")
            return message["result"]

    def size(self, width: int, height: int) -> None:
        """Set the page's width and height [pixels]."""
        viewport = {"width": width, "height": height}
        self._call("browsingContext.setViewport", context=self._context, viewport=viewport)

    def goto(self, address: str) -> None:
        """Open an address and wait until it is loaded."""
        self._call("browsingContext.navigate", context=self._context, url=address, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a script's expression, or of the promise that it is."""
        answer = self._call(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"].get("value", "null"))


@contextmanager
def started(folder: Path) -> Iterator[Firefox]:
    """Start Firefox without a window, its profile in a folder; yield its page."""
    command = [FIREFOX, "--headless", "--profile", str(folder), "--remote-debugging-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(folder / "WebDriverBiDiServer.json")
        with connect(f"ws://127.0.0.1:{port}/session", max_size=None) as socket:
            yield Firefox(socket)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _port(file: Path) -> int:
    """Return the port that a starting Firefox writes into its profile."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(FileNotFoundError, json.JSONDecodeError):  # not there, or half of it
            return json.loads(file.read_text())["ws_port"]
        time.sleep(0.05)
    raise TimeoutError(f"{FIREFOX} did not open a port within {PATIENCE} s")
