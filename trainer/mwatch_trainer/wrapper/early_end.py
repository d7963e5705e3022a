# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Detects training that ends by its own rules before its last iteration, such as early stopping.

The first such exit with 0 cannot be distinguished from a failure, so training is restarted. If it
exits with 0 again at the same iteration without a new step, it is finished. The previous attempt's
last iteration is kept in `<save>/.mwatch/early_end.json`, because that attempt's pods and their
volumes may be gone. A node that prints no iterations reads from its ranks' probe records whether
there was a new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import Iterator, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.checkpoint.timeline import FOLDER
from mwatch_trainer.exits.explain import ExplainedExit
from mwatch_trainer.exits.log_reader import ExitLogReader
from mwatch_trainer.probe.record_file import SIZE, unpack
from mwatch_trainer.reporting import EARLY_EXIT

FILE = "early_end.json"
_SECONDS = 5.0
_MAX_RECORDS = 4096


class EarlyEnd(NamedTuple):
    attempt: int
    iteration: int
    interval: int = 1
    """Iterations between two printed lines: up to `interval - 1` more may have finished."""
    total: int = 0
    """0: unknown."""
    node: int = -1
    """The node that printed the iterations; -1: the node that wrote this file printed none."""


def judged(
    exit_: ExplainedExit, reader: ExitLogReader, plan: AttemptPlan, directory: str | None
) -> ExplainedExit:
    """Return the exit, marked as finished if an earlier attempt ended at the same iteration."""
    is_unexplained = reader.empty_exit is None and not reader.is_missing_checkpoint
    is_early = exit_.code == 0 and exit_.returned == EARLY_EXIT and is_unexplained
    if not is_early or plan.save is None or reader.errors.found:
        return exit_
    found: list[EarlyEnd | None] = []
    save = plan.save
    looking = threading.Thread(
        target=lambda: found.append(_again(save, plan, reader, directory)),
        name="mwatch-early-end",
        daemon=True,  # the disk may hang
    )
    looking.start()
    looking.join(_SECONDS)
    if not found or found[0] is None:
        return exit_
    total = f" of {found[0].total}" if found[0].total else ""
    where = f"{reader.unit} {found[0].iteration}{total}"
    reason = f"training finished: it ended at {where} by itself, twice"
    return exit_._replace(reason=reason, returned=0, is_final=True)


def _again(
    save: str, plan: AttemptPlan, reader: ExitLogReader, directory: str | None
) -> EarlyEnd | None:
    """Record where this attempt ended; return the record if an earlier attempt ended there too."""
    path = os.path.join(save, FOLDER, FILE)
    printed = [] if reader.iteration is None else [reader.iteration]
    seen = [*printed, *(each for each in _probed(directory, plan.number) if each > 0)]
    last = max([plan.resume_from or 0, *seen])
    node = plan.node_rank if printed else -1
    this = EarlyEnd(plan.number, last, reader.interval, reader.total or 0, node)
    before = _read(path)
    if before is not None and _is_same(before, this, plan):
        if seen or plan.nnodes <= 1 or before.node == plan.node_rank:
            return this._replace(total=this.total or before.total)
    elif printed or (seen and (before is None or before.attempt < plan.number)):
        _write(path, this)
    return None


def _is_same(before: EarlyEnd, this: EarlyEnd, plan: AttemptPlan) -> bool:
    if plan.resume_from is None or before.attempt >= plan.number:
        return False
    has_stepped = this.iteration > plan.resume_from
    most = before.iteration if has_stepped else before.iteration + before.interval - 1
    least = before.iteration if has_stepped else 0
    return least <= this.iteration <= most


def _read(path: str) -> EarlyEnd | None:
    document = contract.read_json(path) or {}
    found = [document.get(name) for name in EarlyEnd._fields]
    numbers = [each for each in found if type(each) is int]
    return EarlyEnd(*numbers) if len(numbers) == len(found) else None


def _write(path: str, end: EarlyEnd) -> None:
    document = {"version": contract.VERSION, **end._asdict()}
    own = f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"  # two nodes may write at once
    with contextlib.suppress(OSError):
        contract.make_folder(os.path.dirname(path))
        data = json.dumps(document).encode()
        contract.replace_file(path, data, is_synced=True, temporary=own)


def _probed(directory: str | None, attempt: int) -> Iterator[int]:
    """Yield the last finished iteration of each rank in this pod, from the probe records."""
    if directory is None:
        return
    folder = os.path.join(directory, contract.PROBE_FOLDER)
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    for name in names[:_MAX_RECORDS]:
        record = unpack(contract.read_bytes(os.path.join(folder, name), SIZE) or b"")
        if record is not None and record.attempt == attempt:
            yield record.iteration
