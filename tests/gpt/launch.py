# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job of the trainer in a test: its ranks, what they print, how they end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
# Small enough for a step of some ten milliseconds.
TINY = [
    *("--num-layers", "1", "--hidden-size", "32", "--num-attention-heads", "2"),
    *("--seq-length", "32", "--micro-batch-size", "2", "--log-interval", "1", "--eval-iters", "1"),
    *("--distributed-timeout-seconds", "60"),
]
_LINE = re.compile(r" iteration +(\d+)/ *\d+ \|.*")


class Nursery:
    """The process that ranks are born from."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "trainer"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, **question: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, program: str, argv: Sequence[str], env: dict[str, str], log: Path) -> int:
        """The pid of the new process; both its streams go to `log`."""
        pid: int = self.ask(program=program, argv=list(argv), env=env, out=str(log))
        return pid

    def wait(self, pid: int, seconds: float) -> int | None:
        code: int | None = self.ask(wait=pid, seconds=seconds)
        return code

    def close(self) -> None:
        with self._process:
            self._process.kill()


class Job:
    """The ranks of one attempt."""

    def __init__(self, nursery: Nursery, folder: Path, argv: Sequence[str], ranks: int) -> None:
        self._nursery = nursery
        logs = Path(tempfile.mkdtemp(prefix="attempt-", dir=folder))
        self._logs = [logs / f"rank-{rank}.log" for rank in range(ranks)]
        self.codes: list[int | None] = [None] * ranks
        port = free_port()
        self.pids = []
        for rank, log in enumerate(self._logs):
            environment = {
                "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            }  # fmt: skip
            env = {name: str(value) for name, value in environment.items()}
            self.pids.append(nursery.start("train", argv, env, log))

    def log(self, rank: int) -> str:
        path = self._logs[rank]
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def lines(self) -> dict[int, str]:
        """Iteration lines by iteration, without their head: the last rank prints them."""
        found = _LINE.finditer(self.log(len(self._logs) - 1))
        return {int(match[1]): match[0] for match in found}

    def wait(self, seconds: float = 120.0, ranks: Sequence[int] | None = None) -> list[int | None]:
        """Exit codes, negative for a signal; None for a rank that is still there."""
        end = time.monotonic() + seconds
        for rank in range(len(self.pids)) if ranks is None else ranks:
            if self.codes[rank] is None:
                left = max(0.0, end - time.monotonic())
                self.codes[rank] = self._nursery.wait(self.pids[rank], left)
        return self.codes

    def until(self, text: str, rank: int, seconds: float = 120.0) -> None:
        """Returns as soon as a rank has printed `text`; fails where it does not."""
        end = time.monotonic() + seconds
        while text not in self.log(rank):
            assert time.monotonic() < end, f"rank {rank} did not print {text!r}:\n{self.log(rank)}"
            time.sleep(0.02)

    def close(self) -> None:
        for rank, pid in enumerate(self.pids):
            if self.codes[rank] is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.wait(60.0)


def field(line: str, name: str) -> str | None:
    """A value of an iteration line; None where it is not printed."""
    found = re.search(rf"\| {re.escape(name)}: +(\S+) \|", line)
    return found[1] if found else None


def start_job(nursery: Nursery, folder: Path, arguments: str, ranks: int) -> Job:
    """A tiny job that saves to, and loads from, `ck` in its folder."""
    checkpoints = str(folder / "ck")
    argv = [*TINY, "--save", checkpoints, "--load", checkpoints, *arguments.split()]
    return Job(nursery, folder, argv, ranks)
