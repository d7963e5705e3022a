# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded logs of real runs: each folder of `corpus` holds a log and the expected events.

`expect.json` has one short line per event, in the order of the log. A folder of several pods names
them by file. The verdicts are checked in `test_corpus_verdicts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mwatch.model.event import Event, event_name
from support.builders.events import events

CORPUS = Path(__file__).parent / "corpus"
LOGS = sorted(CORPUS.glob("*/*.log"))
each_log = pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")


def _step(event: Any) -> str:
    losses = ", ".join(f"{name} {value:.6E}" for name, value in event.losses.items()) or "no loss"
    first = " first" if event.first_of_process else ""
    skipped = f" skipped {event.skipped}" if event.skipped else ""
    total = event.total_iterations
    return f"{event.iteration}/{total} covers {event.covers}{first}{skipped} {losses}"


def _validation(event: Any) -> str:
    losses = ", ".join(f"{name} {value:.6E}" for name, value in event.losses.items())
    return f"{event.iteration} {event.dataset} {losses}"


def _checkpoint(event: Any) -> str:
    how = {True: " async", False: "", None: ""}[event.is_async]
    return f"{event.op} {event.edge} {event.iteration} {event.path}{how}"


def _error(event: Any) -> str:
    code = "" if event.exit_code is None else f" code {event.exit_code}"
    return f"{event.kind} {event.error} rank {event.rank}{code}"


def _arguments(event: Any) -> str:
    return f"{event.precision} world {event.world_size} interval {event.log_interval}"


FORMS: dict[str, Callable[[Any], str]] = {
    "iteration": _step,
    "batch": _step,
    "validation": _validation,
    "checkpoint": _checkpoint,
    "error": _error,
    "arguments": _arguments,
    "phase": lambda event: f"{event.name} {event.edge}",
    "fault": lambda event: f"{event.id} rank {event.rank}",
    "exit": lambda event: f"{event.reason} {event.iteration}",
    "timers": lambda event: " ".join(sorted(event.values)),
    "straggler": lambda event: " ".join(sorted(event.measures)),
    "overflow": lambda event: f"{event.scale_before} {event.scale_after}",
}


def compact(found: list[Event]) -> list[str]:
    """One line an event, by line number and then by text."""
    said = [(e.line, name, FORMS[name](e)) for e in found for name in [event_name(type(e))]]
    return [f"{line} {name} {text}" for line, name, text in sorted(said)]


@each_log
def test_the_log_reads_as_expected(log: Path) -> None:
    expected = json.loads((log.parent / "expect.json").read_text())["events"]
    if isinstance(expected, dict):
        expected = expected[log.name]
    assert compact(events(log.read_bytes(), faults=True)) == expected


@each_log
def test_the_log_reads_the_same_in_small_pieces(log: Path) -> None:
    data = log.read_bytes()
    pieces, whole = events(data, faults=True, chunk=997), events(data, faults=True)
    assert list(map(repr, pieces)) == list(map(repr, whole))  # a NaN equals no other


@each_log
def test_the_log_is_small(log: Path) -> None:
    assert log.stat().st_size <= 60_000
