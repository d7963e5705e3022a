# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar costs beside a pod that trains: CPU, memory, start, scrape, and a flood of lines.

The sidecar is the real process; the volume is written by another (`benchmarks.pod`): 8 ranks'
records, 8 GPUs and 40 processes each second, and the log. Somebody scrapes it every 15 seconds
and polls its snapshot every 5, as Prometheus and the controller do. The other program is what
such a thing costs at least in Python: `prometheus_client` with as many series and nothing behind.
"""

from __future__ import annotations

import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from urllib.error import URLError

from benchmarks.measure import ChildFailed
from benchmarks.row import Row
from benchmarks.serving import SCRAPES, WAIT_SECONDS, Running, pod, running
from mwatch import json_codec
from mwatch.model.snapshot.snapshot_wire import from_wire

TARGET_CPU = 0.01
TARGET_BYTES = 64 << 20
TARGET_START_SECONDS = 0.8
TARGET_SCRAPE_SECONDS = 0.02
FLOOD = 20_000
PODS = 2048
POLL_SECONDS = 5.0
_MIB = 1 << 20
_STARTS = 5
_PEER = """
import sys, time
from prometheus_client import CollectorRegistry, Gauge, start_http_server
registry = CollectorRegistry()
gauge = Gauge("series", "As many as the sidecar has.", ["number"], registry=registry)
for number in range(int(sys.argv[1])): gauge.labels(str(number)).set(number)
server, _ = start_http_server(0, addr="127.0.0.1", registry=registry)
print(f"http://127.0.0.1:{server.server_port}/metrics", flush=True)
while True: time.sleep(60)
"""


def sidecar_words(volume: Path) -> list[str]:
    """With its settings in variables, as in a pod."""
    settings = {"dir": volume, "run": "bench", "pod": "pod-0", "host": "127.0.0.1", "port": 0}
    variables = [f"MWATCH_{name.upper()}={value}" for name, value in settings.items()]
    return ["env", *variables, sys.executable, "-m", "mwatch", "sidecar"]


def _peer(series: int) -> list[str]:
    return [sys.executable, "-c", _PEER, str(series)]


def settle(ours: Running) -> None:
    """Wait until it has seen everything that there is to see."""
    deadline = time.monotonic() + WAIT_SECONDS
    while "mwatch_gpu_power_watts" not in ours.scrape():
        if time.monotonic() > deadline:
            raise ChildFailed("the sidecar sees no GPU")
        time.sleep(0.2)


class Idle:
    """One pod that trains in peace, and its sidecar beside it, for some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        with tempfile.TemporaryDirectory() as folder, pod(Path(folder)):
            with running(sidecar_words(Path(folder))) as ours:
                settle(ours)
                with running(_peer(ours.series())) as peer:
                    self._measure(ours, peer)
            self.starts = [self._start(sidecar_words(Path(folder))) for _ in range(_STARTS)]
            self.peer_starts = [self._start(_peer(self.series)) for _ in range(_STARTS)]

    def row(self) -> Row:
        return Row(
            "sidecar-cpu",
            f"{self.cpu:.2%} of a core",
            f"{self.peer_cpu:.2%}",
            target=f"<= {TARGET_CPU:.0%}",
            met=self.cpu <= TARGET_CPU,
            note=f"{self.seconds:.0f} s, 8 ranks, 8 GPUs, 1 line/s, scraped and polled; other: "
            "prometheus_client with as many series",
        )

    def memory_row(self) -> Row:
        return Row(
            "sidecar-memory",
            f"{self.peak / _MIB:.1f} MiB",
            f"{self.peer_peak / _MIB:.1f} MiB",
            self.peak / self.peer_peak,
            target=f"<= {TARGET_BYTES // _MIB} MiB",
            met=self.peak <= TARGET_BYTES,
            note="peak RSS of the same run",
        )

    def start_row(self) -> Row:
        best, worst, theirs = min(self.starts), max(self.starts), min(self.peer_starts)
        return Row(
            "sidecar-start",
            f"{best:.2f} s",
            f"{theirs:.2f} s",
            best / theirs,
            target=f"<= {TARGET_START_SECONDS:g} s",
            met=worst <= TARGET_START_SECONDS,
            note=f"to the first scrape, best of {_STARTS}; worst, which counts, {worst:.2f} s",
        )

    def scrape_row(self) -> Row:
        return Row(
            "sidecar-scrape",
            f"{self.scrape * 1000:.1f} ms",
            f"{self.peer_scrape * 1000:.1f} ms",
            self.scrape / self.peer_scrape,
            target=f"<= {TARGET_SCRAPE_SECONDS * 1000:.0f} ms",
            met=self.scrape <= TARGET_SCRAPE_SECONDS,
            note=f"median of {SCRAPES}, {self.series} series",
        )

    def snapshot_row(self) -> Row:
        """What it costs whoever reads the snapshots of all pods of a job."""
        seconds = min(timeit.repeat(self._read, number=100, repeat=5)) / 100
        most = POLL_SECONDS / PODS
        return Row(
            "snapshot-read",
            f"{seconds * 1e6:.0f} us",
            target=f"<= {most * 1e6:.0f} us",
            met=seconds <= most,
            note=f"{len(self.snapshot)} bytes of JSON to observations; {PODS} pods every "
            f"{POLL_SECONDS:.0f} s on one core leave the target for each",
        )

    def _read(self) -> None:
        from_wire(json_codec.decode(self.snapshot)).observed(0.0)

    def _measure(self, ours: Running, peer: Running) -> None:
        before, peer_before, began = ours.cpu_seconds(), peer.cpu_seconds(), time.monotonic()
        turn, cursor = 0, ""
        while (now := time.monotonic()) - began < self.seconds:
            self.snapshot = ours.get(f"/v1/snapshot?after={cursor}")
            cursor = json_codec.decode(self.snapshot)["cursor"]
            if turn % 3 == 0:
                ours.get("/metrics")
                peer.get("/metrics")
            turn += 1
            time.sleep(max(0.0, min(began + turn * 5, began + self.seconds) - now))
        took = time.monotonic() - began
        self.cpu = (ours.cpu_seconds() - before) / took
        self.peer_cpu = (peer.cpu_seconds() - peer_before) / took
        self.peak, self.peer_peak = ours.peak_bytes(), peer.peak_bytes()
        self.series = ours.series()
        self.scrape, self.peer_scrape = ours.scrape_seconds(), peer.scrape_seconds()

    def _start(self, words: Sequence[str]) -> float:
        with running(words) as one:
            return one.start_seconds


def measurements(idle_seconds: float, flood_seconds: float) -> dict[str, Callable[[], Row]]:
    @cache
    def idle() -> Idle:
        return Idle(idle_seconds)

    return {
        "sidecar-cpu": lambda: idle().row(),
        "sidecar-memory": lambda: idle().memory_row(),
        "sidecar-start": lambda: idle().start_row(),
        "sidecar-scrape": lambda: idle().scrape_row(),
        "snapshot-read": lambda: idle().snapshot_row(),
        "sidecar-flood": lambda: flood_row(flood_seconds),
    }


def flood_row(seconds: float) -> Row:
    """Whether all lines of a flood are read, and what that costs."""
    with tempfile.TemporaryDirectory() as folder:
        volume = Path(folder)
        with (
            pod(volume, str(FLOOD), f"{seconds:g}") as writer,
            running(sidecar_words(volume)) as ours,
        ):
            before = ours.cpu_seconds()
            assert writer.stdout is not None
            written = int(writer.stdout.readline())
            read = _caught_up(ours, written)
            cpu = (ours.cpu_seconds() - before) / seconds
            peak = ours.peak_bytes()
    return Row(
        "sidecar-flood",
        f"{read:,} of {written:,} lines",
        target=f"all, <= {TARGET_BYTES // _MIB} MiB",
        met=read == written and peak <= TARGET_BYTES,
        note=f"{FLOOD:,} lines/s for {seconds:.0f} s; peak {peak / _MIB:.1f} MiB, "
        f"{cpu:.1%} of a core",
    )


def _caught_up(ours: Running, written: int) -> int:
    deadline = time.monotonic() + WAIT_SECONDS
    read = 0
    while read < written and time.monotonic() < deadline:
        try:
            read = int(ours.scrape()["mwatch_log_lines_total"])
        except (URLError, KeyError):
            break
        time.sleep(0.2)
    return read
