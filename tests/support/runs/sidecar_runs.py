# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the real `mwatch sidecar` over a volume, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from support import waiting

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0
"""Only a broken test waits so long."""
ENDS_SECONDS = 30.0
"""What Kubernetes gives a container for its end."""


def environment(**more: str) -> dict[str, str]:
    ours = ("MWATCH_", "OTEL_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    folders = os.pathsep.join(str(ROOT / name) for name in ("sidecar", "trainer"))
    return {**kept, "PYTHONPATH": folders, **more}


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "mwatch", "sidecar", *options]


class Sidecar:
    def __init__(self, process: subprocess.Popen[bytes], volume: Path, said: Path) -> None:
        self.process = process
        self.volume = volume
        self._said = said

    @property
    def said(self) -> str:
        return self._said.read_text("utf-8")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Of one that speaks JSON."""
        return [json.loads(line) for line in self.said.splitlines()]

    @property
    def port(self) -> int:
        found: re.Match[str] = until(lambda: re.search(r":(\d+)/metrics", self.said))
        return int(found[1])

    def get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            body: bytes = answer.read()
            return body

    def metrics(self) -> dict[str, float]:
        """By name and labels as they are printed, without the run."""
        lines = self.get("/metrics").decode().splitlines()
        pairs = (line.rpartition(" ")[::2] for line in lines if not line.startswith("#"))
        return {_without_run(name): float(value) for name, value in pairs}

    def metric(self, name: str) -> float | None:
        return self.metrics().get(name)

    def snapshot(self, after: str = "") -> dict[str, Any]:
        query = f"?after={after}" if after else ""
        body: dict[str, Any] = json.loads(self.get(f"/v1/snapshot{query}"))
        return body

    def ends(self, number: int = signal.SIGTERM) -> float:
        """Asks it to; returns how many seconds that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(PATIENCE)
        return time.monotonic() - began


def _without_run(name: str) -> str:
    bare = re.sub(r'run="[^"]*",?', "", name).replace(",}", "}")
    return bare.replace("{}", "")


@contextmanager
def sidecar(
    volume: Path, *options: str, env: Mapping[str, str] | None = None, run: str = "r"
) -> Iterator[Sidecar]:
    """On a free port, and killed at the end."""
    said = volume.parent / f"said-{time.monotonic_ns()}"
    words = command("--dir", str(volume), "--name", run, "--pod", "pod-0", "--port", "0", *options)
    with said.open("wb") as file:
        process = subprocess.Popen(
            words,
            env=dict(env) if env is not None else environment(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Sidecar(process, volume, said)
        finally:
            process.kill()
            process.wait(PATIENCE)


def until(condition: Callable[[], Any]) -> Any:
    """As `support.waiting.until`; a sidecar that does not listen yet counts as "not yet"."""
    return waiting.until(condition, ignoring=(URLError, ConnectionError, FileNotFoundError))
