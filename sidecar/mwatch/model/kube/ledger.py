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
from typing import Any

import msgspec
from msgspec import Struct, structs

from mwatch import json_codec
from mwatch.model import incident
from mwatch.model.decision import Act
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube import gang
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.next_start import NextStart, RestartRequest, shortened
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


class LedgerNote(Struct, frozen=True):
    """A person's word, or the controller's own."""

    at: float
    who: str
    what: str
    why: str


class Halt(Struct, frozen=True):
    """The one switch: nobody acts on anything."""

    at: float
    until: float | None
    who: str
    why: str

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


class CommonCause(Struct, frozen=True):
    """Jobs that stalled together and share something: one incident, and none is restarted."""

    id: str
    at: float
    shared: str
    jobs: tuple[str, ...]  # By their keys; a bounded number of them
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class JobEntry:
    uid: str = ""  # Of the job; another one under the same name starts anew
    updated_at: float = 0.0
    attempt: int = 0
    acts: tuple[Act, ...] = ()
    incidents: tuple[IncidentRecord, ...] = ()
    notes: tuple[LedgerNote, ...] = ()
    step: GangStep | None = None
    start: NextStart | None = None
    """Of the newest attempt that was ordered; `attempt` is its number."""
    request: RestartRequest | None = None  # Of a person, and not yet fulfilled

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
        start = structs.replace(self.start, not_before=not_before)
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
        common = tuple(
            structs.replace(each, jobs=each.jobs[:MAX_NAMED]) for each in book.common[-MAX_COMMON:]
        )
        data[FLEET] = _text(_Fleet(halt=book.halt, common=common))
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
    fleet = _Fleet(None)
    for key, text in data.items():
        try:
            if key == FLEET:
                fleet = json_codec.decode(text, _Fleet, strict=False)
            else:
                jobs[key] = _entry(json_codec.decode(text, _Entry, strict=False))
        except ValueError:
            unread[key] = text
    return LedgerData(jobs, fleet.halt, unread, fleet.common)


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
    return [_text(_document(each)) for each in (bounded, short, least)]


class _Fleet(Struct):
    halt: Halt | None
    common: tuple[CommonCause, ...] = ()
    version: int = VERSION


class _Entry(Struct, rename={"request": "wish"}):
    """A job's entry in JSON; `step` has the state in the words that every release reads."""

    version: int
    uid: str = ""
    updated_at: float = 0.0
    attempt: int = 0
    acts: tuple[dict[str, Any], ...] = ()
    incidents: tuple[dict[str, Any], ...] = ()
    notes: tuple[LedgerNote, ...] = ()
    step: dict[str, Any] | None = None
    start: NextStart | None = None
    request: RestartRequest | None = None


def _document(entry: JobEntry) -> _Entry:
    return _Entry(
        VERSION,
        entry.uid,
        entry.updated_at,
        entry.attempt,
        msgspec.to_builtins(entry.acts),
        tuple(incident.to_json(each) for each in entry.incidents),
        entry.notes,
        None if entry.step is None else gang.to_json(entry.step),
        None if entry.start is None else shortened(entry.start),
        entry.request,
    )


def _entry(body: _Entry) -> JobEntry:
    if body.version > VERSION:
        raise ValueError("of a newer release")
    return JobEntry(
        body.uid,
        body.updated_at,
        body.attempt,
        tuple(
            msgspec.convert(incident.with_known_cause(each), Act, strict=False)
            for each in body.acts
        ),
        tuple(incident.from_json(each) for each in body.incidents),
        body.notes,
        None if body.step is None else gang.from_json(body.step, body.start),
        body.start,
        body.request,
    )


def _text(document: Struct) -> str:
    # ASCII: as many bytes as characters.
    return json.dumps(msgspec.to_builtins(document), separators=(",", ":"), sort_keys=True)


def _size(data: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(text.encode()) for key, text in data.items())
