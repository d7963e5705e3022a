# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A long run with a fault every few minutes: are memory, descriptors, threads and disk flat?

`PYTHONPATH=tests python -m benchmarks.soak --minutes 240 --every 180` trains the small GPT on two
ranks under `mwatch run --act`, with a sidecar beside it, and stops, kills or starves a rank from
time to time, or kills a part of mwatch. Every ten seconds it measures `mwatch run`, the wrapper,
its helpers and the sidecar. A figure is flat if its median in the last quarter is at most
`--growth` above that of the second quarter: the first one learns and fills caches. Exit code 1: one
is not, or a rank that was stopped or killed led to no other attempt. With `--out` the figures so
far are in that file, too. The trainer has the lowest priority.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kills import HELPERS, children
from mwatch_trainer import contract
from mwatch_trainer.processes import proc

_MWATCH = [sys.executable, "-m", "mwatch"]
_LOOK_SECONDS = 10.0
_KEPT_CHECKPOINTS = 20
_FAULTS = ("stop a rank", "kill a rank", "kill pump", "kill node facts", "slow a rank")
_ROOM = {"memory": 8 << 20, "descriptors": 4, "threads": 4, "disk": 64 << 20}
"""Growth below this is noise. The disk holds evidence of at most so many incidents."""


class Sample(NamedTuple):
    at: float
    part: str
    memory: int
    descriptors: int
    threads: int


class Soak:
    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._random = random.Random(options.seed)
        self._options = options
        self._volume = folder / "runs" / "soak" / "volume"
        self.samples: list[Sample] = []
        self.disk: list[tuple[float, int]] = []
        self.faults: Counter[str] = Counter()
        self.unanswered: list[str] = []
        self._expected: tuple[str, int] | None = None

    def run(self) -> dict[str, Any]:
        said = (self._folder / "said").open("wb")
        (self._folder / "policy.toml").write_text(
            "[act]\nrestarts_per_window = 100000\nbackoff_first_seconds = 1\n"
            "backoff_max_seconds = 5\n",
            "utf-8",
        )
        watcher = subprocess.Popen(
            self._command(), cwd=self._folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        while not self._volume.is_dir() and watcher.poll() is None:
            time.sleep(0.1)
        sidecar = subprocess.Popen(
            [*_MWATCH, "sidecar", "--dir", str(self._volume), "--port", "0", "--pod", "p",
             "--name", "soak", "--evidence", str(self._folder / "evidence")],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            self._follow(watcher, sidecar)
        finally:
            for each in (watcher, sidecar):
                each.send_signal(signal.SIGINT)
            for each in (watcher, sidecar):
                each.wait(120)
            said.close()
        return self._figures(watcher.returncode)

    def _command(self) -> list[str]:
        save = str(self._folder / "ckpt")
        trainer = [
            "nice", "-n", "19",
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "mwatch_gpt", "--num-layers", "2", "--hidden-size", "64",
            "--num-attention-heads", "4", "--seq-length", "64",
            "--micro-batch-size", "1", "--global-batch-size", "2", "--lr", "1e-4", "--bf16",
            "--train-iters", "10000000", "--log-interval", "10", "--eval-iters", "0",
            "--save", save, "--load", save, "--save-interval", "200",
        ]  # fmt: skip
        if self._options.stand_in:
            path = Path(__file__).resolve().parents[1] / "tests/support/runs/printing_trainer.py"
            trainer = [
                sys.executable, str(path), "--train-iters", "100000000", "--step-seconds", "0.2",
                "--save", save, "--load", save, "--save-interval", "50",
            ]  # fmt: skip
        runs = ["--runs", str(self._folder / "runs"), "--name", "soak", "--port", "0", "--json"]
        policy = ["--policy", str(self._folder / "policy.toml")]
        return [*_MWATCH, "run", "--act", "--grace", "10", *runs, *policy, "--", *trainer]

    def _follow(self, watcher: subprocess.Popen[bytes], sidecar: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 60 * self._options.minutes
        fault_at = time.monotonic() + self._options.every
        while time.monotonic() < end and watcher.poll() is None:
            self._measure({"mwatch run": watcher.pid, "sidecar": sidecar.pid, **self._helpers()})
            if time.monotonic() >= fault_at:
                fault_at = time.monotonic() + self._options.every
                self._fault(self._random.choice(_FAULTS))
                if self._options.out is not None:
                    self._options.out.write_text(json.dumps(self._figures(None), indent=1))
            time.sleep(_LOOK_SECONDS)

    def _attempt(self) -> dict[str, Any]:
        return contract.read_json(str(self._volume / contract.ATTEMPT)) or {}

    def _helpers(self) -> dict[str, int]:
        wrapper = self._attempt().get("wrapper_pid")
        if wrapper is None:
            return {}
        found = {"wrapper": wrapper}
        for part, word in HELPERS.items():
            if pids := children(wrapper, word):
                found[part] = pids[-1]
        return found

    def _measure(self, parts: dict[str, int]) -> None:
        now = time.monotonic()
        for part, pid in parts.items():
            seen = proc.read(pid)
            with suppress(OSError):
                files = len(os.listdir(f"/proc/{pid}/fd"))
                if seen is not None and seen.state not in "ZX":
                    self.samples.append(Sample(now, part, seen.rss_bytes, files, seen.threads))
        places = (self._folder / "runs", self._folder / "evidence", self._folder / "said")
        self.disk.append((now, sum(map(_size, places))))
        old = sorted((self._folder / "ckpt").glob("iter_*"))[:-_KEPT_CHECKPOINTS]
        for each in old:  # a trainer's own, which the user removes
            shutil.rmtree(each, ignore_errors=True)

    def _fault(self, what: str) -> None:
        """Make a fault; a rank that was stopped or killed must have led to another attempt since
        the last one."""
        attempt = self._attempt().get("attempt", 0)
        if self._expected is not None and attempt == self._expected[1]:
            self.unanswered.append(f"{self._expected[0]}, attempt {attempt}")
        self._expected = (what, attempt) if what in ("stop a rank", "kill a rank") else None
        self.faults[what] += 1
        if what.endswith("rank"):
            with suppress(OSError, ValueError, KeyError, IndexError):
                facts = json.loads((self._volume / "node" / "processes.json").read_text())
                ranks = [each["pid"] for each in facts["processes"] if each.get("is_rank")]
                pid = self._random.choice(ranks)
                if what == "slow a rank":
                    os.setpriority(os.PRIO_PROCESS, pid, 19)
                else:
                    os.kill(pid, signal.SIGSTOP if what == "stop a rank" else signal.SIGKILL)
            return
        pid = self._helpers().get(what.removeprefix("kill "))
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _figures(self, code: int | None) -> dict[str, Any]:
        parts = sorted({each.part for each in self.samples})
        figures: dict[str, Any] = {}
        for part in parts:
            mine = [each for each in self.samples if each.part == part]
            for name in ("memory", "descriptors", "threads"):
                values = [(each.at, getattr(each, name)) for each in mine]
                figures[f"{part}: {name}"] = self._growth(name, values)
        figures["disk"] = self._growth("disk", self.disk)
        said = (self._folder / "said").read_text("utf-8", "replace")
        return {
            "minutes": self._minutes(), "faults": dict(self.faults), "exit_code": code,
            "incidents": said.count('{"event": "incident"'),
            "restarts": said.count('"action": "restart"'),
            "unanswered": self.unanswered,
            "tracebacks": said.count("internal error"),
            "figures": figures,
            # Interrupted by this program at the end, and not ended before.
            "is_whole": code == 128 + signal.SIGINT and not self.unanswered,
            "is_flat": all(each["is_flat"] for each in figures.values()),
        }  # fmt: skip

    def _minutes(self) -> float:
        return round((self.disk[-1][0] - self.disk[0][0]) / 60, 1) if self.disk else 0.0

    def _growth(self, name: str, values: list[tuple[float, int]]) -> dict[str, Any]:
        early, late = _quarter(values, 1), _quarter(values, 3)
        most = max((1 + self._options.growth) * early, early + _ROOM[name])
        return {"second_quarter": early, "last_quarter": late, "is_flat": late <= most}


def _quarter(values: list[tuple[float, int]], number: int) -> int:
    if not values:
        return 0
    first, last = values[0][0], values[-1][0]
    span = (last - first) / 4 or 1.0
    low, high = first + number * span, first + (number + 1) * span
    found = [value for at, value in values if low <= at <= high] or [values[-1][1]]
    return int(statistics.median(found))


def _size(place: Path) -> int:
    return sum(_sizes(place.rglob("*") if place.is_dir() else [place]))


def _sizes(paths: Iterable[Path]) -> Iterable[int]:
    for each in paths:
        with suppress(OSError):
            if each.is_file():
                yield each.stat().st_size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=240.0)
    add("--every", type=float, default=180.0, help="seconds between faults")
    add("--growth", type=float, default=0.1, help="what still counts as flat, as a share")
    add("--seed", type=int, default=1)
    add("--out", type=Path, metavar="FILE", help="the figures as JSON, renewed after each fault")
    add("--stand-in", action="store_true", help="a trainer without torch, in one process")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    with tempfile.TemporaryDirectory(prefix="mwatch-soak-") as folder:
        figures = Soak(Path(folder), options).run()
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))
    return int(not (figures["is_flat"] and figures["is_whole"]))


if __name__ == "__main__":
    sys.exit(main())
