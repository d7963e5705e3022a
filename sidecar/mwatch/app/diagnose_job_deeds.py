# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What mwatch did to a job, or was kept from: by the controller, its ledger, and its Events.

The controller is asked first, and knows what is under way; the ledger outlives it; Events are
forgotten after an hour, and are there for who may read nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mwatch.app.diagnose_job_facts import JobFacts
from mwatch.model.decision import Act, Action
from mwatch.model.incident import IncidentRecord
from mwatch.model.pause import pause_of

MAX_DEEDS = 6


class Deed(NamedTuple):
    at: float | None
    text: str
    source: str
    """`controller`, `ledger`, `event` or `annotation`."""


def deeds_of(facts: JobFacts) -> list[Deed]:
    """The newest first, and what holds now before all."""
    now = [*_held(facts), *_hands(facts.controller)]
    past = sorted(_past(facts), key=lambda each: -(each.at or 0.0))
    found = list(dict.fromkeys([*now, *past]))
    return found[:MAX_DEEDS]


def _held(facts: JobFacts) -> Iterator[Deed]:
    pause = pause_of(facts.job, facts.kube.now)
    if pause is not None:
        yield Deed(pause.until, f"paused ({pause.words or 'by hand'})", "annotation")
    halt = None if facts.book is None else facts.book.halt
    if halt is not None and (halt.until is None or halt.until > facts.kube.now):
        yield Deed(halt.at, f"acts on nothing: {halt.who}: {halt.why}", "ledger")


def _hands(controller: Mapping[str, Any] | None) -> Iterator[Deed]:
    hands = (controller or {}).get("hands")
    if not isinstance(hands, Mapping):
        return
    since = hands.get("since")
    at = float(since) if isinstance(since, int | float) else None
    for key in ("text", "last"):
        if hands.get(key):
            yield Deed(at if key == "text" else None, str(hands[key]), "controller")


def _past(facts: JobFacts) -> Iterator[Deed]:
    entry = None if facts.book is None else facts.book.of(facts.key)
    if entry is None or (entry.uid and entry.uid != facts.job.uid):
        yield from _events(facts)
        return
    for act in entry.acts:
        yield Deed(act.at, _act(act, entry.incidents), "ledger")
    for note in entry.notes:
        yield Deed(note.at, f"{note.what} by {note.who}: {note.why}", "ledger")
    if entry.step is not None and entry.is_under_way:
        yield Deed(None, f"a gang restart is under way ({entry.step.id})", "ledger")
    if not entry.acts and not entry.notes:
        yield from _events(facts)


def _events(facts: JobFacts) -> Iterator[Deed]:
    for each in facts.said:
        yield Deed(each.at, f"{each.reason}: {each.text}", "event")


def _act(act: Act, incidents: tuple[IncidentRecord, ...]) -> str:
    record = next((each for each in incidents if each.attempt == act.attempt), None)
    is_real = record is None or record.is_carried_out
    verb = {Action.RESTART: "restarted", Action.STOP: "stopped"}.get(act.action, act.action.value)
    if not is_real:
        verb = f"would have {verb}"
    place = "" if act.resume_from is None else f" from checkpoint {act.resume_from}"
    return f"{verb} attempt {act.attempt}{place} ({act.cause.value})"
