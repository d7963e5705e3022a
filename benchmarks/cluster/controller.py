# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The real `mwatch controller`, alone on one core, and what it says over HTTP."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.cluster import processes
from benchmarks.cluster.processes import FIRST
from benchmarks.cluster.site import NAMESPACE, BenchPlane
from benchmarks.cluster.training_job import NAME
from benchmarks.serving import environment

PORT = 9402
POLL_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_END_SECONDS = 15.0


class Controller:
    def __init__(self, plane: BenchPlane, kubeconfig: Path, core: int, *, name: str) -> None:
        """`name`: of its log."""
        self._plane = plane
        evidence = plane.folder / f"{name}-evidence"
        evidence.mkdir()
        words = ["controller", "-n", NAMESPACE, "--kubeconfig", str(kubeconfig)]
        words += ["--port", str(PORT), "--poll", f"{POLL_SECONDS:g}", "--evidence", str(evidence)]
        self.began = time.time()
        plane.namespaces.start(
            name,
            [*FIRST, "taskset", "-c", str(core), sys.executable, "-m", "mwatch", *words],
            environment(),
        )
        self.pid = processes.find(plane.namespaces.first, "mwatch", "controller")

    def job(self) -> dict[str, Any]:
        """What it says of the job; empty: nothing yet."""
        url = f"http://127.0.0.1:{PORT}/v1/jobs/{NAMESPACE}/{NAME}"
        try:
            with urlopen(url, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (URLError, OSError, ValueError):
            return {}

    def get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body

    def wait_for(
        self, what: str, is_so: Callable[[dict[str, Any]], bool], seconds: float
    ) -> float | None:
        """When it first said so; None: it did not in that time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if dead := self._plane.namespaces.dead():
                raise RuntimeError(f"{dead} died while waiting for {what}: "
                                   f"{self._plane.namespaces.tail(dead)}")  # fmt: skip
            if is_so(self.job()):
                return time.time()
            time.sleep(_LOOK_SECONDS)
        print(f"not within {seconds:.0f} s: {what}", file=sys.stderr, flush=True)
        return None

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            until = time.monotonic() + _END_SECONDS
            while time.monotonic() < until:
                os.kill(self.pid, 0)
                time.sleep(0.1)
            os.kill(self.pid, signal.SIGKILL)
