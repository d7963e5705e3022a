# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records, stacks and real processes for the tests of the probe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from mwatch_trainer.probe.record_file import ProbeRecord, unpack
from mwatch_trainer.probe.stack import Place, Stack

SITE = Path(__file__).resolve().parents[3] / "trainer" / "mwatch_trainer" / "site"
WORKER = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
_PATIENCE_SECONDS = 120.0
T = TypeVar("T")

RECORD = ProbeRecord(
    attempt=3,
    restart_count=0,
    pid=4242,
    started=777,
    rank=5,
    local_rank=1,
    world_size=8,
    iteration=610,
    monotonic=1000.25,
    time=1_760_000_000.5,
    ticks=12,
    dump_signal=63,
    phase="compute",
    stack="00c0ffee",
    where="training/training.py:2765 train",
)


def place(file: str, function: str, line: int = 1, names: dict[str, Any] | None = None) -> Place:
    code: CodeType = compile("", file, "exec").replace(co_name=function)
    return code, line, names or {}


def stack(*places: tuple[str, str]) -> Stack:
    """The outermost first, as one reads a program."""
    return [place(file, function) for file, function in reversed(places)]


@contextmanager
def running(
    code: str, folder: Path, environ: dict[str, str] | None = None, *options: str
) -> Iterator[subprocess.Popen[str]]:
    """A Python under the probe's sitecustomize, as the wrapper starts it; killed at the end."""
    told = {"MWATCH_DIR": str(folder), "PYTHONPATH": str(SITE), "MWATCH_ATTEMPT": "3"}
    with tempfile.TemporaryDirectory() as place_for_code:
        script = Path(place_for_code, "program.py")
        script.write_text(code, "utf-8")
        child = subprocess.Popen(
            [sys.executable, *options, str(script)],
            env={**_plain_environment(), **told, **(WORKER if environ is None else environ)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with child:
            try:
                yield child
            finally:
                _kill_group(child.pid)


def _plain_environment() -> dict[str, str]:
    ours = ("MWATCH", "PYTHON", "COV", "SLURM", "OMPI", "PMI", "RANK", "LOCAL_RANK")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def finished(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a child that is told to end."""
    out, err = child.communicate("\n", timeout=_PATIENCE_SECONDS)
    return child.returncode, out, err


def tree_of(pid: int) -> set[int]:
    """A process and all below it; torchrun gives each worker a session of its own."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                status = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(status[1])
    found, more = {pid}, {pid}
    while more:
        more = {each for each, parent in parents.items() if parent in more} - found
        found |= more
    return found


def record_of(folder: Path, rank: int = 0) -> ProbeRecord | None:
    try:
        return unpack((folder / "probe" / f"rank-{rank}").read_bytes())
    except FileNotFoundError:
        return None


def wait_for(look: Callable[[], T | None], what: str) -> T:
    """The first answer that is not None."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        answer = look()
        if answer is not None:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def standing(folder: Path, rank: int = 0, phase: str | None = None) -> ProbeRecord:
    """The record of a rank whose stack has not changed for two beats, in that phase."""
    last: list[ProbeRecord] = []

    def look() -> ProbeRecord | None:
        record = record_of(folder, rank)
        if record is None or phase not in (None, record.phase):
            return None
        if last and last[0].stack == record.stack:
            return record if record.ticks - last[0].ticks >= 2 else None
        last[:] = [record]
        return None

    return wait_for(look, f"rank {rank} to stand still")


def state_of(pid: int) -> str:
    """R, S, T … as the kernel tells it."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]


def beat_after(folder: Path, ticks: int = 0, rank: int = 0) -> ProbeRecord:
    """The first record with more ticks than that."""

    def look() -> ProbeRecord | None:
        record = record_of(folder, rank)
        return record if record is not None and record.ticks > ticks else None

    return wait_for(look, f"a record of rank {rank}")
