# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the real `mwatch run` around a trainer that only prints, and leaves nothing behind.

`run` and `started` fork it from a process that has loaded mwatch; `command` is the line for a test
that starts Python itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from support.forked import ForkedProcess
from support.repository.json_schema import read_json
from support.runs.commands import start_mwatch
from support.runs.wrapper_runs import descendants
from support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
MWATCH = [sys.executable, "-m", "mwatch"]
TRAINER = Path(__file__).with_name("printing_trainer.py")
HANGS = """
[act]
backoff_first_seconds = 0.2
min_restart_cost_seconds = 0.5
default_restart_cost_seconds = 0.5
stall_factor = 1.0
lost_pod_seconds = 0.5

[hang]
suspended_seconds = 3
"""
"""For runs that are to be found hanging: after the usual five seconds."""
QUICK = f"""{HANGS}
probe_floor_seconds = 90
beat_silence_seconds = 90

[deadlines.training]
default_seconds = 1800
factor = 2
floor_seconds = 90
ceiling_seconds = 7200
"""
"""For all others: a trainer that waits for its turn on a busy machine does not hang."""
PATIENCE = 150.0
"""Only a broken test waits so long; the machine may be busy with others."""
_PF_EXITING, _PF_SIGNALED = 0x4, 0x400
"""Of the kernel's `include/linux/sched.h`: it ends; a signal ends it."""
_NOTHING: Mapping[str, float] = MappingProxyType({})


def environment(**more: str) -> dict[str, str]:
    """As of one rank: the trainer is started without torchrun."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MWATCH_")}
    folders = os.pathsep.join(str(ROOT / name) for name in ("sidecar", "trainer"))
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return {**kept, **rank, "PYTHONPATH": folders, "TERM": "dumb", **more}


def trainer(*flags: str) -> list[str]:
    return [sys.executable, str(TRAINER), *flags]


def command(
    folder: Path, *options: str, then: Sequence[str], policy: str = QUICK, says: str = "--json"
) -> list[str]:
    file = folder / "policy.toml"
    file.write_text(policy, "utf-8")
    runs = ["--runs", str(folder / "runs"), "--name", "r", "--policy", str(file), "--port", "0"]
    return [*MWATCH, "run", says, *runs, *options, "--", *then]


class Finished(NamedTuple):
    code: int
    out: bytes
    err: bytes
    folder: Path
    """Of the run."""

    @property
    def said(self) -> list[dict[str, Any]]:
        """What mwatch told, without what the trainer printed on the same stream."""
        lines = self.err.decode("utf-8", "replace").splitlines()
        return [read_json(line, "event") for line in lines if line.startswith('{"event"')]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.said if each["event"] == event]

    @property
    def records(self) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob("incidents/*/incident.json"))
        return [json.loads(each.read_text("utf-8")) for each in files]

    @property
    def story(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "story.json").read_text("utf-8"))
        inner: dict[str, Any] = found["story"]
        return inner

    @property
    def attempt(self) -> dict[str, Any]:
        return attempt_of(self.folder)


def run(
    line: Sequence[str],
    folder: Path,
    *,
    given: bytes = b"",
    env: dict[str, str] | None = None,
    patches: Mapping[str, float] = _NOTHING,
) -> Finished:
    """`patches`: as of `support.forked.Program`."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(given)
        files[0].seek(0)
        numbers = [each.fileno() for each in files]
        process = start(line, numbers, folder, env or environment(), patches=patches)
        code = process.ends(PATIENCE)
        for each in files:
            each.seek(0)
        return Finished(code, files[1].read(), files[2].read(), folder / "runs" / "r")


def start(
    line: Sequence[str],
    files: Sequence[int],
    folder: Path,
    env: dict[str, str],
    *,
    has_terminal: bool = False,
    patches: Mapping[str, float] = _NOTHING,
) -> ForkedProcess:
    """The line of `command`, without starting Python for it."""
    assert line[: len(MWATCH)] == MWATCH, "start it with subprocess"
    return start_mwatch(
        line[len(MWATCH) :], files, cwd=folder, environment=env, has_terminal=has_terminal,
        patches=patches,
    )  # fmt: skip


class Running:
    def __init__(self, process: ForkedProcess, folder: Path) -> None:
        self.process = process
        self._folder = folder
        self.folder = folder / "runs" / "r"
        self.said = folder / "said"

    @property
    def attempt(self) -> dict[str, Any]:
        return attempt_of(self.folder)

    def starts(self) -> dict[str, Any]:
        """Its attempt, once the trainer is there and prints."""
        log = self.folder / "volume" / "trainer.log"
        until(lambda: log.exists() and b"iteration" in log.read_bytes())
        return until(lambda: self.attempt.get("pid") and self.attempt)  # type: ignore[no-any-return]

    def says(self, text: str) -> None:
        until(lambda: text.encode() in self.said.read_bytes())

    def ends(self) -> Finished:
        code = self.process.wait(PATIENCE)
        return Finished(code, b"", self.said.read_bytes(), self.folder)


@contextmanager
def started(
    line: Sequence[str],
    folder: Path,
    given: dict[str, str] | None = None,
    patches: Mapping[str, float] = _NOTHING,
) -> Iterator[Running]:
    """Killed at the end, with all that it has started. `given`: its environment."""
    with (folder / "said").open("wb") as said, open(os.devnull, "r+b") as nothing:
        files = [nothing.fileno(), nothing.fileno(), said.fileno()]
        process = start(line, files, folder, given or environment(), patches=patches)
    try:
        yield Running(process, folder)
    finally:
        kill_all(process, folder)


def kill_all(process: ForkedProcess, folder: Path) -> None:
    """The `mwatch run` and all that it has started, be it on the way."""
    process.send_signal(signal.SIGSTOP)
    below = descendants(process.pid)  # one that is just being started names no folder yet
    process.kill()
    process.wait(PATIENCE)
    while found := {*below, *_processes_of(folder)}:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        below = []


def attempt_of(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "volume" / "attempt.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def left_behind(folder: Path) -> list[int]:
    """Processes that name a run of this folder and are not on their way out: one that was killed
    needs a core to end, and on a busy machine it waits for that."""
    return [pid for pid in _processes_of(folder) if not _is_ending(pid)]


def _is_ending(pid: int) -> bool:
    """Whether SIGKILL waits for each of its threads, or the kernel takes it down already."""
    try:
        flags = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[6])
        waiting = re.findall(
            rb"^SigPnd:\t(\w+)$", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE
        )
    except OSError:
        return True
    is_killed = bool(waiting) and bool(int(waiting[0], 16) & 1 << signal.SIGKILL - 1)
    return is_killed or bool(flags & (_PF_EXITING | _PF_SIGNALED))


def _processes_of(folder: Path) -> list[int]:
    """Those that name a run of this folder in their arguments or their environment."""
    wanted = str(folder / "runs").encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            if wanted in words and int(place.name) != os.getpid():
                found.append(int(place.name))
    return found
