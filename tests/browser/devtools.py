# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A page in headless Chromium, spoken to over its debugging pipe; no port and no other library.

Messages are JSON, ended by a zero byte, on file descriptors 3 and 4 of the browser.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from browser.chromium import Chromium

_SECONDS = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe",
    "about:blank",
)  # fmt: skip
_WIRE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab. `complaints` are console messages, uncaught errors and what the policy forbade."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[str] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(each for each in targets if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, place: Path | str) -> None:
        """`place`: a file, or an address."""
        self._events.clear()
        url = place if isinstance(place, str) else place.resolve().as_uri()
        self.call("Page.navigate", url=url)
        self._wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """Of a promise: what it brings."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        button = "none" if kind == "mouseMoved" else "left"
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def screenshot(self, file: Path, clip: tuple[int, int, int, int] | None = None) -> None:
        more: dict[str, Any] = {}
        if clip is not None:
            box = dict(zip(("x", "y", "width", "height"), clip, strict=True))
            more = {"clip": {**box, "scale": 1}, "captureBeyondViewport": True}
        shot = self.call("Page.captureScreenshot", format="png", **more)
        file.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _wait_for(self, event: str) -> None:
        while event not in self._events:
            self._read()

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._back, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("Chromium does not answer")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        self._note(found)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        method, said = message.get("method", ""), message.get("params", {})
        if method:
            self._events = [*self._events, method][-1000:]
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(said)[:2000])
        if method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])


@contextmanager
def page(browser: Chromium) -> Iterator[Page]:
    """A fresh browser with one empty tab; nothing of it is left afterwards."""
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    with browser.environment() as environment:
        home = Path(environment["HOME"])
        wiring = [sys.executable, "-IS", "-c", _WIRE, str(to_read), str(back_write)]
        with open(home / "stderr", "wb") as errors:
            process = subprocess.Popen(
                [*wiring, str(browser.binary), *_FLAGS, f"--user-data-dir={home}"],
                env=environment, pass_fds=(to_read, back_write), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        os.close(to_read)
        os.close(back_write)
        try:
            tab = Page(to_write, back_read)
            try:
                tab.attach()
            except OSError as error:
                said = (home / "stderr").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Chromium does not start: {said}") from error
            yield tab
        finally:
            os.close(to_write)
            os.close(back_read)
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=_SECONDS)
