# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that serve metrics, and the pod beside them, for the rows of the sidecar."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from benchmarks.measure import ROOT, ChildFailed, installed

SCRAPES = 30
WAIT_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Running:
    """A process that serves metrics."""

    def __init__(self, words: Sequence[str]) -> None:
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment()
        )
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline().decode()
            if not line:
                raise ChildFailed(f"{' '.join(words[:4])} ended with {self.process.wait()}")
            found = re.search(r":(\d+)/metrics", line)
            if found:
                break
        self.url = f"http://127.0.0.1:{found[1]}"
        self.scrape()
        self.start_seconds = time.perf_counter() - self.began

    def get(self, page: str) -> bytes:
        with urlopen(self.url + page, timeout=10) as answer:
            body: bytes = answer.read()
            return body

    def scrape(self) -> dict[str, float]:
        lines = self.get("/metrics").decode().splitlines()
        pairs = (line.rpartition(" ")[::2] for line in lines if not line.startswith("#"))
        return {name.partition("{")[0]: float(value) for name, value in pairs}

    def series(self) -> int:
        return sum(not line.startswith(b"#") for line in self.get("/metrics").splitlines())

    def cpu_seconds(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) << 10

    def scrape_seconds(self) -> float:
        taken = []
        for _ in range(SCRAPES):
            began = time.perf_counter()
            self.get("/metrics")
            taken.append(time.perf_counter() - began)
        return statistics.median(taken)


@contextmanager
def running(words: Sequence[str]) -> Iterator[Running]:
    one = Running(words)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


@contextmanager
def pod(volume: Path, *flood: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "benchmarks.pod", str(volume), *flood]
    writer = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment(), cwd=ROOT)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (volume / "node" / "gpus.json").exists():
            if time.monotonic() > deadline:
                raise ChildFailed("the pod writes nothing")
            time.sleep(0.01)
        yield writer
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()


def environment() -> dict[str, str]:
    ours = ("MWATCH_", "OTEL_")
    kept = {name: text for name, text in installed().items() if not name.startswith(ours)}
    folders = [str(ROOT / name) for name in ("sidecar", "trainer", "tests", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(folders)}
