# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""With which environment and arguments the trainer was started, without its secrets.

Read from /proc: what a program has set for itself since is not in it. One environment in full, of
the first process; of every other only what differs, or a job of many ranks would repeat itself.
"""

from __future__ import annotations

import json
from typing import Any, Mapping, Sequence

from mwatch_trainer.processes import Process
from mwatch_trainer.scrub import Scrubber
from mwatch_trainer.scrub_arguments import scrubbed
from mwatch_trainer.scrub_environment import scrubbed_environment

MAX_READ_BYTES = 1 << 18
MAX_BYTES = 1 << 20
MAX_PROCESSES = 256
_MAX_WORDS = 2048


def environments(
    processes: Sequence[Process], patterns: Sequence[str], proc: str = "/proc"
) -> dict[str, Any]:
    """Of the trainer's processes, parents first; of the last ones nothing where it is too much."""
    first: dict[str, str] | None = None
    told: list[dict[str, Any]] = []
    size = 0
    for process in processes[:MAX_PROCESSES]:
        size += len(json.dumps(told[-1:]))
        if size > MAX_BYTES:
            break
        environ = _environment(process.pid, proc)
        about: dict[str, Any] = {
            "pid": process.pid, "name": process.name,
            "argv": _arguments(process.pid, patterns, proc),
        }  # fmt: skip
        if not environ:
            told.append({**about, "why": "its environment cannot be read"})
        elif first is None:
            first = environ
            told.append({**about, "environment": "as above"})
        else:
            told.append({**about, "differs": _difference(first, environ, patterns)})
    return {
        "environment": scrubbed_environment(first or {}, Scrubber(patterns)),
        "processes": told,
        "left_out": len(processes) - len(told),
    }


def _difference(
    first: Mapping[str, str], other: Mapping[str, str], patterns: Sequence[str]
) -> dict[str, str | None]:
    """None: it is not set there. Only what differs is scrubbed, which is dear."""
    changed = {name: value for name, value in other.items() if first.get(name) != value}
    found: dict[str, str | None] = {}
    found.update(scrubbed_environment(changed, Scrubber(patterns)))
    gone = {name: "" for name in first if name not in other}
    found.update((name, None) for name in scrubbed_environment(gone, Scrubber(patterns)))
    return found


def _environment(pid: int, proc: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in _words(f"{proc}/{pid}/environ"))
    return {name: value for name, equals, value in pairs if equals and name}


def _arguments(pid: int, patterns: Sequence[str], proc: str) -> list[str]:
    return scrubbed(_words(f"{proc}/{pid}/cmdline")[:_MAX_WORDS], Scrubber(patterns))


def _words(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_READ_BYTES + 1)
    except OSError:
        return []
    # The last one of what was cut is not whole: half a secret is not known as one.
    words = data.split(b"\0")[:-1]
    return [each.decode("utf-8", "replace") for each in words]
