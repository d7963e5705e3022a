# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller must not forget: what was done to each job, by whom, and what is under way.

One text for each job, together small enough for a ConfigMap: the oldest is dropped, but never a
gang restart that is under way. A text of a newer release that cannot be read is kept as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mwatch.model import incident
from mwatch.model.decision import Act, Action
from mwatch.model.finding import Cause
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube import gang
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.next_start import NextStart, RestartRequest, request_of, start_json, start_of
from mwatch.model.kube.restart_state import RULES, RestartEvent, RestartState, after, can

VERSION = 1
FLEET = "fleet"
MAX_BYTES = 800_000
"""A ConfigMap may hold a MiB; UIDs of three gangs of 2,048 pods are a third of it."""
MAX_ACTS = 64
MAX_INCIDENTS = 8
MAX_NOTES = 32
MAX_COMMON = 8
MAX_NAMED = 64


class LedgerNote(NamedTuple):
    """A person's word, or the controller's own."""

    at: float
    who: str
    what: str
    why: str


class Halt(NamedTuple):
    """The one switch: nobody acts on anything."""

    at: float
    until: float | None
    who: str
    why: str

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


class CommonCause(NamedTuple):
    """Jobs that stalled together and share something: one incident, and none is restarted."""

    id: str
    at: float
    shared: str
    jobs: tuple[str, ...]
    """By their keys; a bounded number of them."""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class JobEntry:
    uid: str = ""
    """Of the job; another one under the same name starts anew."""
    updated_at: float = 0.0
    attempt: int = 0
    acts: tuple[Act, ...] = ()
    incidents: tuple[IncidentRecord, ...] = ()
    notes: tuple[LedgerNote, ...] = ()
    step: GangStep | None = None
    start: NextStart | None = None
    """Of the newest attempt that was ordered; `attempt` is its number."""
    request: RestartRequest | None = None
    """Of a person, and not yet fulfilled."""

    @property
    def state(self) -> RestartState:
        """Of the newest restart that was written down."""
        return RestartState.NONE if self.step is None else self.step.state

    @property
    def is_under_way(self) -> bool:
        """Its old pods may still be there."""
        return RULES[self.state].may_delete

    @property
    def must_finish(self) -> bool:
        return RULES[self.state].must_finish

    def moved(self, event: RestartEvent, **facts: Any) -> JobEntry:
        """After the event; `facts`: of the record that change with it. IllegalTransition where a
        restart in this state does not take it."""
        assert self.step is not None
        return replace(self, step=replace(self.step, state=after(self.state, event), **facts))

    def cleared(self, outcome: str) -> JobEntry:
        """The old gang is gone, or there is nothing left to do to it. As it is where that is known
        already: what was done stays so, whoever remembers it otherwise."""
        event = RestartEvent.CLOSED if self.start is None else RestartEvent.PODS_GONE
        return self.moved(event, outcome=outcome) if can(self.state, event) else self

    def released(self, not_before: float) -> JobEntry:
        """The wrappers may start then. As it is where the gang is not gone, or they may already."""
        if self.start is None or not can(self.state, RestartEvent.LET_START):
            return self
        start = self.start._replace(not_before=not_before)
        return replace(self.moved(RestartEvent.LET_START), start=start)

    def fulfilled(self) -> JobEntry:
        """The order has done its work; its number stays, so the next one is larger."""
        if not can(self.state, RestartEvent.FULFILLED):
            return self
        return replace(self.moved(RestartEvent.FULFILLED), start=None)

    @property
    def ours(self) -> frozenset[str]:
        """UIDs of pods that mwatch itself deletes, or has deleted last."""
        if self.step is None or self.step.way in (Method.IN_PLACE, Method.STOP):
            return frozenset()
        return frozenset(self.step.uids)


@dataclass(frozen=True, slots=True)
class LedgerData:
    """By `KIND.NAME` of the job: a ledger is of one namespace."""

    jobs: Mapping[str, JobEntry] = field(default_factory=dict)
    halt: Halt | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    common: tuple[CommonCause, ...] = ()

    def of(self, key: str) -> JobEntry:
        return self.jobs.get(key, JobEntry())

    def with_job(self, key: str, entry: JobEntry) -> LedgerData:
        return replace(self, jobs={**self.jobs, key: entry})


def to_data(book: LedgerData, max_bytes: int = MAX_BYTES) -> dict[str, str]:
    """The texts of the ConfigMap, within the bound."""
    data = dict(book.unread)
    if book.halt is not None or book.common:
        common = [
            {**each._asdict(), "jobs": each.jobs[:MAX_NAMED]} for each in book.common[-MAX_COMMON:]
        ]
        halt = None if book.halt is None else book.halt._asdict()
        data[FLEET] = _text({"version": VERSION, "halt": halt, "common": common})
    # Those to be finished come first, then the newest: what does not fit is the oldest.
    order = sorted(
        book.jobs.items(), key=lambda each: (not each[1].must_finish, -each[1].updated_at)
    )
    left = max_bytes - _size(data)
    for key, entry in order:
        text = next((text for text in _texts(entry) if len(text) + len(key) <= left), None)
        if text is not None:
            data[key] = text
            left -= len(text) + len(key)
    return data


def from_data(data: Mapping[str, str]) -> LedgerData:
    jobs: dict[str, JobEntry] = {}
    unread: dict[str, str] = {}
    halt, common = None, tuple[CommonCause, ...]()
    for key, text in data.items():
        try:
            body = json.loads(text)
            if key == FLEET:
                halt, common = _fleet(body)
            else:
                jobs[key] = _entry(body)
        except (ValueError, KeyError, TypeError):
            unread[key] = text
    return LedgerData(jobs, halt, unread, common)


def _fleet(body: Mapping[str, Any]) -> tuple[Halt | None, tuple[CommonCause, ...]]:
    """KeyError where there is neither: of somebody else, or of a newer release."""
    halt = body["halt"]
    common = [CommonCause(**{**each, "jobs": tuple(each["jobs"])}) for each in _list(body)]
    return None if halt is None else Halt(**halt), tuple(common)


def _list(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(body.get("common") or ())


def _texts(entry: JobEntry) -> list[str]:
    """From all of it to the least that must stay."""
    bounded = replace(
        entry,
        acts=entry.acts[-MAX_ACTS:],
        incidents=entry.incidents[-MAX_INCIDENTS:],
        notes=entry.notes[-MAX_NOTES:],
    )
    short = replace(bounded, incidents=bounded.incidents[-1:], notes=bounded.notes[-4:])
    least = replace(bounded, incidents=(), notes=())
    return [_text(_json(each)) for each in (bounded, short, least)]


def _json(entry: JobEntry) -> dict[str, Any]:
    return {
        "version": VERSION,
        "uid": entry.uid,
        "updated_at": entry.updated_at,
        "attempt": entry.attempt,
        "acts": [each._asdict() for each in entry.acts],
        "incidents": [incident.to_json(each) for each in entry.incidents],
        "notes": [each._asdict() for each in entry.notes],
        "step": None if entry.step is None else gang.to_json(entry.step),
        "start": None if entry.start is None else start_json(entry.start),
        "wish": None if entry.request is None else entry.request._asdict(),
    }


def _entry(body: Mapping[str, Any]) -> JobEntry:
    if int(body["version"]) > VERSION:
        raise ValueError("of a newer release")
    step, wish = body.get("step"), body.get("wish")
    start = None if body.get("start") is None else start_of(body["start"])
    return JobEntry(
        uid=str(body.get("uid", "")),
        updated_at=float(body.get("updated_at", 0.0)),
        attempt=int(body.get("attempt", 0)),
        acts=tuple(_act(each) for each in body.get("acts", ())),
        incidents=tuple(incident.from_json(each) for each in body.get("incidents", ())),
        notes=tuple(_note(each) for each in body.get("notes", ())),
        step=None if step is None else gang.from_json(step, start),
        start=start,
        request=None if wish is None else request_of(wish),
    )


def _act(body: Mapping[str, Any]) -> Act:
    cause = str(body["cause"])
    return Act(
        at=float(body["at"]),
        attempt=int(body["attempt"]),
        action=Action(body["action"]),
        cause=Cause(cause) if cause in set(Cause) else Cause.UNKNOWN,
        fingerprint=str(body.get("fingerprint", "")),
        resume_from=body.get("resume_from"),
        iteration=body.get("iteration"),
        spends_budget=bool(body.get("spends_budget", True)),
        first_bad=body.get("first_bad"),
        quarantine_from=body.get("quarantine_from"),
    )


def _note(body: Mapping[str, Any]) -> LedgerNote:
    return LedgerNote(float(body["at"]), str(body["who"]), str(body["what"]), str(body["why"]))


def _text(body: Mapping[str, Any]) -> str:
    # ASCII: as many bytes as characters.
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def _size(data: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(text.encode()) for key, text in data.items())
