# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What belongs to the evidence of an incident, the small things first.

Each part yields contents, or what is missing and why. A part spends from one budget of bytes, so
that a job of many ranks cannot fill a volume; the stacks of all ranks come before the flight
recorder of any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mwatch.act.volume_reader import VolumeReader
from mwatch_trainer.contract import (
    ATTEMPT,
    DECISION,
    DUMPS_FOLDER,
    LOG,
    NODE_FOLDER,
    NODE_GPUS,
    NODE_PROCESSES,
    PROBE_FOLDER,
    PROBE_PREFIX,
)
from mwatch_trainer.probe_record import SIZE, unpack

MAX_FILE_BYTES = 8 << 20
MAX_FILES = 4096
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
RECORDER_FOLDER = "recorder"
_OLDER_LOGS = tuple(f"{LOG}.{number}" for number in range(1, 4))
_LOOK_BYTES = 1024


class Content(NamedTuple):
    name: str
    data: bytes
    is_cut: bool = False
    is_binary: bool = False
    """Cannot be scrubbed in part: it is whole or not there."""


class Missing(NamedTuple):
    what: str
    why: str


@dataclass(slots=True)
class Budget:
    bytes: int
    log_bytes: int

    def take(self, amount: int) -> None:
        self.bytes = max(0, self.bytes - amount)


Found = Iterator[Content | Missing]
Part = Callable[[VolumeReader, str, Budget], Found]


def dump(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """Stacks and facts first, then the flight recorder."""
    try:
        names = volume.names(DUMPS_FOLDER, id)
    except OSError as error:
        yield Missing("stacks and flight recorder", f"there is no dump: {_why(error)}")
        return
    if len(names) > MAX_FILES:
        yield Missing("part of the dump", f"it has {len(names)} files")
    for name in sorted(names[:MAX_FILES], key=lambda name: (".flight." in name, name)):
        if not is_safe_name(name):
            yield Missing(ascii(name)[:100], "it has an odd name")
            continue
        yield from _file(volume, (DUMPS_FOLDER, id, name), name, budget)


def recorder(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """What torch has dumped of itself when a collective timed out."""
    try:
        names = volume.names(DUMPS_FOLDER, RECORDER_FOLDER)
    except OSError:
        return
    for name in filter(is_safe_name, names[:MAX_FILES]):
        path = (DUMPS_FOLDER, RECORDER_FOLDER, name)
        yield from _file(volume, path, f"{RECORDER_FOLDER}-{name}", budget)


def attempt(volume: VolumeReader, id: str, budget: Budget) -> Found:
    yield from _file(volume, (ATTEMPT,), ATTEMPT, budget)
    yield from _file(volume, (DECISION,), DECISION, budget, is_needed=False)


def node(volume: VolumeReader, id: str, budget: Budget) -> Found:
    for name in (NODE_PROCESSES, NODE_GPUS):
        yield from _file(volume, (NODE_FOLDER, name), f"{NODE_FOLDER}-{name}", budget)


def probes(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """The records of all ranks in one readable file."""
    try:
        names = [each for each in volume.names(PROBE_FOLDER) if each.startswith(PROBE_PREFIX)]
    except OSError as error:
        yield Missing("probe records", _why(error))
        return
    records = []
    for name in names[:MAX_FILES]:
        try:
            record = unpack(volume.head(PROBE_FOLDER, name, most=SIZE).data)
        except OSError as error:
            yield Missing(name, _why(error))
            continue
        if record is None:
            yield Missing(name, "its record was being written, or is of another release")
        else:
            records.append(record._asdict())
    data = json.dumps({"records": records}, indent=1).encode()
    budget.take(len(data))
    yield Content("probe.json", data)


def log(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """The last lines; of the files before where the newest has just begun."""
    most = min(budget.log_bytes, budget.bytes)
    data, is_cut = b"", False
    for name in (LOG, *_OLDER_LOGS):
        try:
            part = volume.tail(name, most=most - len(data))
        except OSError as error:
            if name == LOG:
                yield Missing(LOG, _why(error))
                return
            break  # there is no older one
        data, is_cut = part.data + data, part.is_cut
        if is_cut or len(data) >= most:
            break
    budget.take(len(data))
    yield Content(LOG, data, is_cut)


def _file(
    volume: VolumeReader, path: tuple[str, ...], name: str, budget: Budget, is_needed: bool = True
) -> Found:
    most = min(MAX_FILE_BYTES, budget.bytes)
    try:
        data, is_cut = volume.head(*path, most=most)
    except FileNotFoundError:
        if is_needed:
            yield Missing(name, "it is not there")
        return
    except OSError as error:
        yield Missing(name, _why(error))
        return
    is_binary = name.endswith(".pickle") or b"\0" in data[:_LOOK_BYTES]
    if is_cut and (is_binary or not most):
        yield Missing(name, "it is too large" if budget.bytes else "the byte budget is spent")
        return
    budget.take(len(data))
    yield Content(name, data, is_cut, is_binary)


def is_safe_name(name: str) -> bool:
    """Of a file in a bundle."""
    return _SAFE.fullmatch(name) is not None


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


PARTS: tuple[Part, ...] = (attempt, node, probes, log, dump, recorder)
"""The small ones first: they are had in any case."""
