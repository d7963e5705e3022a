# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the live page of a sidecar costs: open in one browser, and in as many as it serves.

The clients ask as the page's script does: as often as the server says, for what has changed.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urljoin

from benchmarks.row import Row
from benchmarks.serving import Running, environment, pod, running
from benchmarks.sidecar import TARGET_BYTES, TARGET_CPU, settle, sidecar_words
from mwatch.watch.page import MAX_PAGES

TARGET_AGE_SECONDS = 2.0
"""Of the newest evaluation: the loop turns once a second."""
_MIB = 1 << 20
_OPENED = re.compile(rb'data-page="(\w+)" data-after="([\w.]+)" data-address="([^"]+)"')


CRASHES = 40
CRASHING = """
import sys, time
for step in range(1, 201):
    print(f" [2026-01-01 00:00:{step % 60:02d}] iteration {step:8d}/    5000 |"
          f" consumed samples: {step * 8:12d} | elapsed time per iteration (ms): 10.0 |"
          f" learning rate: 1.0E-04 | global batch size: 8 |"
          f" lm loss: {9 - step / 100:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
          " number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
    time.sleep(0.01)
raise RuntimeError("CUDA error: an illegal memory access was encountered")
"""


class Browser:
    def __init__(self, get: Callable[[str], bytes], path: str = "/") -> None:
        """`get`: the answer to a request for a path."""
        self._get = get
        found = _OPENED.search(get(path))
        assert found is not None
        self._page, self._after = found[1].decode(), found[2].decode()
        address = html.unescape(found[3].decode())
        self._changes = urljoin(path, address) + ("&" if "?" in address else "?")
        self.due = time.monotonic() + 1.0
        self.answers = self.bytes = 0

    def ask(self) -> None:
        body = self._get(f"{self._changes}page={self._page}&after={self._after}")
        found = json.loads(body)
        self._after = found["after"]
        self.due = time.monotonic() + found["wait"]
        self.answers += 1
        self.bytes += len(body)


class Watched:
    """A sidecar beside a pod that trains, at first without a page and then with some."""

    def __init__(self, pages: int, seconds: float) -> None:
        self.oldest = 0.0
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(pod(folder))
            ours = stack.enter_context(running(sidecar_words(folder)))
            settle(ours)
            self.before = self._cpu(ours, seconds, [])
            browsers = [Browser(ours.get) for _ in range(pages)]
            self._cpu(ours, 3.0, browsers)  # the renderer is loaded
            self.cpu = self._cpu(ours, seconds, browsers)
            self.peak = ours.peak_bytes()
            self.answers = sum(each.answers for each in browsers)
            self.bytes = sum(each.bytes for each in browsers)
            self.is_refused = _is_refused(ours)

    def _cpu(self, ours: Running, seconds: float, browsers: list[Browser]) -> float:
        """The share of a core, while these pages are open."""
        began, before = time.monotonic(), ours.cpu_seconds()
        while time.monotonic() - began < seconds:
            for each in browsers:
                if time.monotonic() >= each.due:
                    each.ask()
            time.sleep(0.2)
            if browsers and int(time.monotonic() * 5) % 10 == 0:
                age = json.loads(ours.get("/v1/snapshot?after="))["age"]
                self.oldest = max(self.oldest, age)
        return (ours.cpu_seconds() - before) / (time.monotonic() - began)


def _is_refused(ours: Running) -> bool:
    try:
        ours.get("/")
    except HTTPError as error:
        return error.code == 503
    return False


def measurements(seconds: float) -> dict[str, Callable[[], Row]]:
    return {
        "page": lambda: row(seconds),
        "page-many": lambda: many_row(seconds),
        "page-incidents": incidents_row,
    }


def row(seconds: float) -> Row:
    found = Watched(1, seconds)
    return Row(
        "page",
        f"{found.cpu:.2%} of a core",
        f"{found.before:.2%}",
        found.cpu / found.before if found.before else None,
        target=f"<= {TARGET_CPU:.0%}, {TARGET_BYTES // _MIB} MiB",
        met=found.cpu <= TARGET_CPU and found.peak <= TARGET_BYTES,
        note=f"a sidecar with its page open in one browser for {seconds:.0f} s; other: the same "
        f"without; {found.answers} updates of {found.bytes / max(1, found.answers) / 1e3:.0f} kB; "
        f"peak {found.peak / _MIB:.1f} MiB",
    )


def many_row(seconds: float) -> Row:
    found = Watched(MAX_PAGES, seconds)
    return Row(
        "page-many",
        f"{found.cpu:.1%} of a core",
        f"{found.before:.2%}",
        found.cpu / found.before if found.before else None,
        target=f"evaluations <= {TARGET_AGE_SECONDS:g} s old, one page more refused",
        met=found.oldest <= TARGET_AGE_SECONDS and found.is_refused,
        note=f"{MAX_PAGES} open pages, {found.answers / seconds:.0f} updates/s; oldest evaluation "
        f"{found.oldest:.1f} s; peak {found.peak / _MIB:.1f} MiB",
    )


def incidents_row() -> Row:
    """Under the real wrapper, the command crashes again and again."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(running(sidecar_words(folder)))
        command = [sys.executable, "-m", "mwatch_trainer", "--dir", str(folder), "--"]
        first = 0
        for _ in range(CRASHES):
            subprocess.run(
                [*command, sys.executable, "-c", CRASHING],
                env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, check=False, timeout=60,
            )  # fmt: skip
            browser = Browser(ours.get)
            browser.ask()
            ours.scrape()
            first = first or ours.peak_bytes()
        peak = ours.peak_bytes()
    return Row(
        "page-incidents",
        f"{peak / _MIB:.1f} MiB",
        f"{first / _MIB:.1f} MiB",
        peak / first,
        target=f"<= {TARGET_BYTES // _MIB} MiB",
        met=peak <= TARGET_BYTES,
        note=f"peak memory of a sidecar after {CRASHES} crashes and {CRASHES * 200} iteration "
        "lines, its page asked for after each; other: after the first crash",
    )
