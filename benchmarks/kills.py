# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Kills parts of mwatch at random moments of real runs, and checks what is left.

`PYTHONPATH=tests python -m benchmarks.kills --rounds 200 --seed 1`. Each round starts a trainer
that prints random bytes under `mwatch run`, with a sidecar beside it, kills one, two or three parts
with SIGKILL at a random moment, and lets the run come to its end; a killed `mwatch run` is adopted
by the next one. Checked: training reached its last iteration, every byte arrived, no process and no
socket is left, no incident is recorded twice. Exit code 1: something was not so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import kills_trainer
from mwatch.run.folder import RunFolder
from mwatch.run.unattended import find, find_just_started
from mwatch_trainer import contract
from mwatch_trainer.processes import proc

PARTS = ("wrapper", "pump", "node facts", "probe", "sidecar", "mwatch run")
_HERE = Path(__file__).parent
_PATIENCE = 300.0
_NOT_ADOPTED, _KILLED = 2, 137
_MWATCH = [sys.executable, "-m", "mwatch"]
HELPERS = {"pump": b"output.pump", "node facts": b"gpu.sampler"}
QUICK = """
[act]
backoff_first_seconds = 0.2
min_restart_cost_seconds = 0.5
default_restart_cost_seconds = 0.5
"""


@dataclass(slots=True)
class Round:
    number: int
    seed: int
    killed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    printed: int = 0
    attempts: int = 1
    seconds: float = 0.0

    @property
    def text(self) -> str:
        parts = ", ".join(self.killed) or "nothing"
        state = "; ".join(self.problems) or "ok"
        return (
            f"round {self.number} (seed {self.seed}): killed {parts}; {self.attempts} attempts, "
            f"{self.printed} bytes, {self.seconds:.1f} s: {state}"
        )


class KillRound:
    def __init__(self, number: int, seed: int, size: int, folder: Path) -> None:
        self.round = Round(number, seed)
        self._random = random.Random(seed)
        self._size = size
        self._folder = folder
        self._run = RunFolder(folder / "runs" / "r")
        self._out = (folder / "out").open("ab")
        self._said = (folder / "said").open("ab")

    def carry_out(self) -> Round:
        began = time.monotonic()
        (self._folder / "policy.toml").write_text(QUICK, "utf-8")
        watcher = self._start("--name", "r", "--act", "--grace", "5", "--", *self._trainer())
        try:
            with self._sidecar() as sidecar:
                victims = self._random.sample(PARTS, self._random.choice((1, 1, 1, 1, 2, 3)))
                time.sleep(self._random.uniform(0.0, 6.0))
                for each in victims:
                    self._kill(each, watcher, sidecar)
                self._finish(watcher)
            self._check()
        finally:
            self._clear()
            self.round.seconds = time.monotonic() - began
        return self.round

    def _trainer(self) -> list[str]:
        save = str(self._folder / "ckpt")
        return [
            sys.executable, str(_HERE / "kills_trainer.py"), "--sent", str(self._folder / "sent"),
            "--seed", str(self.round.seed), "--bytes", str(self._size),
            "--train-iters", "40", "--save", save, "--load", save, "--save-interval", "5",
        ]  # fmt: skip

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        options = ["--runs", str(self._folder / "runs"), "--json", "--port", "0"]
        options += ["--policy", str(self._folder / "policy.toml")]
        env = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        return subprocess.Popen(
            [*_MWATCH, "run", *options, *words], cwd=self._folder, env=env,
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._said,
            start_new_session=True,
        )  # fmt: skip

    @contextmanager
    def _sidecar(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        """A list, as a killed one is started again, as the kubelet would."""
        running = [self._start_sidecar()]
        try:
            yield running
        finally:
            for each in running:
                each.terminate()
                each.wait(_PATIENCE)

    def _start_sidecar(self) -> subprocess.Popen[bytes]:
        self._wait(self._run.volume.is_dir)
        words = ["--dir", str(self._run.volume), "--port", "0", "--pod", "p", "--name", "r"]
        return subprocess.Popen(
            [*_MWATCH, "sidecar", *words, "--evidence", str(self._folder / "evidence")],
            stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, cwd=self._folder,
        )  # fmt: skip

    def _kill(
        self, part: str, watcher: subprocess.Popen[bytes], sidecar: list[subprocess.Popen[bytes]]
    ) -> None:
        pid: int | None = None
        if part == "mwatch run":
            pid = watcher.pid
        elif part == "sidecar":
            pid = sidecar[-1].pid
        elif part == "probe":
            is_ready = (self._folder / "sent").exists()  # else the signal would kill the trainer
            pid = self._attempt().get("pid") if is_ready else None
        elif part == "wrapper":
            pid = self._wrapper()
        else:
            pid = next(iter(children(self._wrapper(), HELPERS[part])), None)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1 if part == "probe" else signal.SIGKILL)
            self.round.killed.append(part)
        if part == "sidecar":
            sidecar[-1].wait(_PATIENCE)
            sidecar.append(self._start_sidecar())

    def _attempt(self) -> dict[str, Any]:
        return contract.read_json(str(self._run.volume / contract.ATTEMPT)) or {}

    def _wrapper(self) -> int | None:
        wanted = os.fsencode(self._run.volume)
        for each in proc.all_processes().values():
            words = _words(each.pid)
            if b"mwatch_trainer" in words and wanted in words and each.state not in "ZX":
                return each.pid
        return None

    def _is_late(self, code: int) -> bool:
        """The training was over before the one that was to adopt it had started, or before its
        wrapper was killed, with which its exit code is lost."""
        allowed = {_NOT_ADOPTED} | ({_KILLED} if "wrapper" in self.round.killed else set())
        return code in allowed and (self._folder / "done").exists()

    def _finish(self, watcher: subprocess.Popen[bytes]) -> None:
        """Wait for the end; a run that goes on alone is adopted, one that never began is started
        again."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                code = watcher.wait(max(until - time.monotonic(), 1.0))
            except subprocess.TimeoutExpired:
                self.round.problems.append("did not end in time")
                return
            if code != -signal.SIGKILL:
                if code and not self._is_late(code):
                    self.round.problems.append(f"exit code {code}")
                return
            found = find_just_started(self._run)
            if found is not None and found.wrapper is not None:
                watcher = self._start("--adopt", "r")
                continue
            self._wait(lambda: find(self._run) is None)  # without a wrapper it goes on alone
            if (self._folder / "done").exists():
                return
            shutil.rmtree(self._run.path, ignore_errors=True)
            watcher = self._start("--name", "r", "--act", "--grace", "5", "--", *self._trainer())

    def _wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _PATIENCE
        while not condition() and time.monotonic() < until:
            time.sleep(0.02)

    def _check(self) -> None:
        problems = self.round.problems
        if not (self._folder / "sent").exists():
            problems.append("training never started")
            return
        sent = (self._folder / "sent").read_text().split()
        self.round.attempts = len(sent)
        self._out.flush()
        self.round.printed, wrong = compared(
            self._folder / "out", self.round.seed, self._size, [int(each) for each in sent]
        )
        problems += wrong
        if not (self._folder / "done").exists():
            problems.append("training did not reach its last iteration")
        problems += self._left(lambda: [str(each) for each in self._processes()], "process")
        socket = self._run.volume / "control"
        killed_alone = "wrapper" in self.round.killed
        if socket.exists() and not killed_alone and find(self._run) is None:
            problems.append("the control socket is left")
        for place in (self._run.incidents, self._folder / "evidence"):
            problems += _double(place)
        leftover = [each.name for each in self._run.path.rglob("*.tmp")]
        if leftover and not self.round.killed:
            problems.append(f"unfinished files: {leftover[:4]}")

    def _left(self, found: Callable[[], list[str]], name: str) -> list[str]:
        until = time.monotonic() + 30.0
        while (left := found()) and time.monotonic() < until:
            time.sleep(0.1)
        return [f"{name} left: {', '.join(left[:4])}"] if left else []

    def _processes(self) -> list[int]:
        wanted = os.fsencode(self._folder)
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                texts = Path(f"/proc/{name}/cmdline").read_bytes()
                texts += Path(f"/proc/{name}/environ").read_bytes()
                if wanted in texts and int(name) != os.getpid():
                    found.append(int(name))
        return found

    def _clear(self) -> None:
        self._out.close()
        self._said.close()
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def compared(path: Path, seed: int, size: int, sent: list[int]) -> tuple[int, list[str]]:
    """How many bytes arrived, and what is wrong: of each attempt, the start of the same stream."""
    data, stream = path.read_bytes(), kills_trainer.stream(seed, size)
    at = 0
    for number, least in enumerate(sent, 1):
        is_last = number == len(sent)
        most = len(stream) if is_last else min(least + kills_trainer.CHUNK, len(stream))
        found = _common(data[at : at + most], stream)
        if found < least:
            digest = hashlib.sha256(data).hexdigest()[:12]
            return len(data), [f"attempt {number}: {found} of {least} bytes arrived ({digest})"]
        at += found
    rest = len(data) - at
    return len(data), [f"{rest} bytes too many"] if rest else []


def _common(one: bytes, other: bytes) -> int:
    """The length of the common start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _double(place: Path) -> list[str]:
    found: Counter[tuple[Any, Any]] = Counter()
    for each in place.glob("*/incident.json"):
        try:
            record = json.loads(each.read_text())
        except ValueError:
            return [f"{each} cannot be read"]
        found[record["attempt"], record["cause"]] += 1
    return [f"recorded twice: {key}" for key, count in found.items() if count > 1]


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def children(pid: int | None, word: bytes) -> list[int]:
    every = proc.all_processes().values()
    mine = [each.pid for each in every if each.ppid == pid]
    return [each for each in mine if any(word in text for text in _words(each))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="begin with this round")
    parser.add_argument("--jobs", type=int, default=4, help="rounds at the same time")
    parser.add_argument("--bytes", type=int, default=5_400_000, help="printed in each round")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a failed round")
    options = parser.parse_args()

    def carry_out(number: int) -> Round:
        folder = Path(tempfile.mkdtemp(prefix="mwatch-kills-"))
        seed = options.seed * 100_000 + number
        done = KillRound(number, seed, options.bytes, folder).carry_out()
        print(done.text, flush=True)
        if options.keep and done.problems:
            print(f"round {number}: see {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return done

    with ThreadPoolExecutor(options.jobs) as pool:
        numbers = range(options.first, options.first + options.rounds)
        rounds = list(pool.map(carry_out, numbers))
    kills = Counter(part for each in rounds for part in each.killed)
    bad = [each for each in rounds if each.problems]
    print(json.dumps({
        "rounds": len(rounds), "bad": len(bad), "kills": dict(kills),
        "bytes": sum(each.printed for each in rounds),
        "restarted": sum(each.attempts > 1 for each in rounds),
        "seconds": round(sum(each.seconds for each in rounds)),
    }))  # fmt: skip
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
