# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the real `mwatch-run` around small real commands, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mwatch_trainer.control import client
from support.waiting import until

TRAINER = Path(__file__).resolve().parents[3] / "trainer"
LIMIT_SECONDS = 120.0


class Ended(NamedTuple):
    code: int
    out: bytes
    err: bytes


def environ(**extra: str) -> dict[str, str]:
    """Of the tests, without what would change how the wrapper works."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("MWATCH_")}
    return {**kept, "PYTHONPATH": str(TRAINER), **extra}


def command(*words: str, options: Sequence[str] = (), patch: str = "") -> list[str]:
    """`patch`: Python that runs before the wrapper does; it can change its limits of time."""
    main = "from mwatch_trainer.__main__ import main; sys.exit(main(sys.argv[1:]))"
    start = ["-c", f"import sys\n{patch}\n{main}"] if patch else ["-m", "mwatch_trainer"]
    return [sys.executable, *start, *options, "--", *words]


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def run(
    directory: Path | None,
    *words: str,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> Ended:
    where = ["--dir", str(directory)] if directory is not None else []
    done = subprocess.run(
        command(*words, options=["--no-node-facts", *where, *options]),
        env=dict(env) if env is not None else environ(),
        input=given,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(
    directory: Path,
    *words: str,
    options: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    with_node_facts: bool = False,
    patch: str = "",
    **changes: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end, with all that is below it. `given`: its environment."""
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings.update(stdin=subprocess.DEVNULL, env=dict(given or environ()), **changes)
    facts = [] if with_node_facts else ["--no-node-facts"]
    given_options = [*facts, "--dir", str(directory), *options]
    wrapper = subprocess.Popen(command(*words, options=given_options, patch=patch), **settings)
    try:
        yield wrapper
    finally:
        below = descendants(wrapper.pid)
        for pid in (wrapper.pid, *below):
            kill(pid)
        wrapper.wait(LIMIT_SECONDS)
        for stream in (wrapper.stdout, wrapper.stderr):
            if stream is not None:
                stream.close()


def isolation() -> list[str]:
    """What makes the command after it the main process of a container of its own."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    for extra in ([], ["--user", "--map-root-user"]):
        words = ["unshare", *extra, "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return words
    pytest.skip("this user may not make a PID namespace")


def ask(
    directory: str, request: Mapping[str, Any], seconds: float = LIMIT_SECONDS
) -> dict[str, Any]:
    """The wrapper's answer, which a busy machine may keep waiting."""
    return client.ask(directory, request, seconds)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def attempt(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "attempt.json").read_text()))


def child_pid(directory: Path) -> int:
    def started() -> int | None:
        try:
            found = attempt(directory)
        except (OSError, ValueError):
            return None
        return None if found["exit"] else found["pid"]

    return int(until(started))


def log(directory: Path) -> bytes:
    return (directory / "trainer.log").read_bytes()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = list(parents.get(pid, []))
    for each in found:
        found += parents.get(each, [])
    return found


def helpers(wrapper: int, module: str) -> list[int]:
    """The processes that it has started to run a module of `mwatch_trainer`; not their children,
    which look like them until they are another program."""
    found: dict[int, int] = {}
    for pid in descendants(wrapper):
        with suppress(OSError):
            if f"mwatch_trainer.{module}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
                found[pid] = int(stat.rpartition(")")[2].split()[1])
    return [pid for pid, parent in found.items() if parent not in found]
