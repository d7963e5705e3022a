# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's ledger: the actions on each job, who requested them, and what is under way.

It has one text per job, and all texts together fit into a ConfigMap: the oldest are dropped, but
never a gang restart that is under way. A text that cannot be read (of a newer release) is kept
unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

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
"""A ConfigMap may hold 1 MiB; the UIDs of three gangs of 2,048 pods take a third of that."""
MAX_ACTS = 64
MAX_INCIDENTS = 8
MAX_NOTES = 32
MAX_COMMON = 8
MAX_NAMED = 64
MAX_ANNOUNCED = 16


class LedgerNote(Struct, frozen=True):
    """A note by a person or by the controller."""

    at: float
    who: str
    what: str
    why: str


class Halt(Struct, frozen=True):
    """The global switch: no action on any job."""

    at: float
    until: float | None
    who: str
    why: str

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


class CommonCause(Struct, frozen=True):
    """Jobs that stalled together and share a resource: one incident, and none is restarted."""

    id: str
    at: float
    shared: str
    jobs: tuple[str, ...]  # keys; bounded
    ended_at: float | None = None


class Announced(Struct, frozen=True):
    """An incident that people were notified of and that is not over."""

    attempt: int
    cause: str  # the first one
    is_stop: bool = False  # a sign that training stands still
    is_acted: bool = False


@dataclass(frozen=True, slots=True)
class JobEntry:
    uid: str = ""  # of the job; another job of the same name starts with an empty entry
    updated_at: float = 0.0
    attempt: int = 0
    acts: tuple[Act, ...] = ()
    incidents: tuple[IncidentRecord, ...] = ()
    notes: tuple[LedgerNote, ...] = ()
    step: GangStep | None = None
    start: NextStart | None = None  # order of the newest attempt; `attempt` is its number
    request: RestartRequest | None = None  # by a person, not fulfilled yet
    announced: tuple[Announced, ...] = ()

    @property
    def state(self) -> RestartState:
        """State of the newest restart."""
        return RestartState.NONE if self.step is None else self.step.state

    @property
    def is_under_way(self) -> bool:
        """Whether a restart is in a state in which its old pods may still exist."""
        return RULES[self.state].may_delete

    @property
    def must_finish(self) -> bool:
        return RULES[self.state].must_finish

    def moved(self, event: RestartEvent, **facts: Any) -> JobEntry:
        """Apply an event and the facts that change with it. Raises IllegalTransition."""
        assert self.step is not None
        return replace(self, step=replace(self.step, state=after(self.state, event), **facts))

    def cleared(self, outcome: str) -> JobEntry:
        """Return the entry once the old gang is gone, or nothing is left to do.

        It is unchanged if that is recorded already.
        """
        event = RestartEvent.CLOSED if self.start is None else RestartEvent.PODS_GONE
        return self.moved(event, outcome=outcome) if can(self.state, event) else self

    def released(self, not_before: float) -> JobEntry:
        """Return the entry with the time from which the wrappers may start.

        It is unchanged if the old gang is not gone, or if they may start already.
        """
        if self.start is None or not can(self.state, RestartEvent.LET_START):
            return self
        start = structs.replace(self.start, not_before=not_before)
        return replace(self.moved(RestartEvent.LET_START), start=start)

    def fulfilled(self) -> JobEntry:
        """Return the entry with its order fulfilled; the next attempt number must be larger."""
        if not can(self.state, RestartEvent.FULFILLED):
            return self
        return replace(self.moved(RestartEvent.FULFILLED), start=None)

    @property
    def ours(self) -> frozenset[str]:
        """UIDs of pods that mwatch deletes, or deleted last."""
        if self.step is None or self.step.way in (Method.IN_PLACE, Method.STOP):
            return frozenset()
        return frozenset(self.step.uids)


@dataclass(frozen=True, slots=True)
class LedgerData:
    """Entries by `KIND.NAME` of the job; a ledger belongs to one namespace."""

    jobs: Mapping[str, JobEntry] = field(default_factory=dict)
    halt: Halt | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
    common: tuple[CommonCause, ...] = ()

    def of(self, key: str) -> JobEntry:
        return self.jobs.get(key, JobEntry())

    def with_job(self, key: str, entry: JobEntry) -> LedgerData:
        return replace(self, jobs={**self.jobs, key: entry})


def to_data(book: LedgerData, max_bytes: int = MAX_BYTES) -> dict[str, str]:
    """Return the texts of the ConfigMap, bounded in size."""
    data = dict(book.unread)
    if book.halt is not None or book.common:
        common = tuple(
            structs.replace(each, jobs=each.jobs[:MAX_NAMED]) for each in book.common[-MAX_COMMON:]
        )
        data[FLEET] = _text(_Fleet(halt=book.halt, common=common))
    # Restarts under way first, then the newest entries: the oldest are left out.
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


def _texts(entry: JobEntry) -> Iterator[str]:
    """Yield texts of an entry, from the full one to the shortest."""
    bounded = replace(
        entry,
        acts=entry.acts[-MAX_ACTS:],
        incidents=tuple(replace(each, stacks=()) for each in entry.incidents[-MAX_INCIDENTS:]),
        notes=entry.notes[-MAX_NOTES:],
    )
    short = replace(bounded, incidents=bounded.incidents[-1:], notes=bounded.notes[-4:])
    least = replace(bounded, incidents=(), notes=())
    return (_text(_document(each)) for each in (bounded, short, least))


class _Fleet(Struct):
    halt: Halt | None
    common: tuple[CommonCause, ...] = ()
    version: int = VERSION


class _Entry(Struct, rename={"request": "wish"}):
    """A job's entry in JSON; `step` has the state as every release reads it."""

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
    announced: tuple[Announced, ...] | UnsetType = UNSET
    """Unset if empty: such entries stay as older releases wrote them."""


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
        entry.announced[-MAX_ANNOUNCED:] or UNSET,
    )


def _entry(body: _Entry) -> JobEntry:
    if body.version > VERSION:
        raise ValueError("of a newer release")
    return JobEntry(
        body.uid,
        body.updated_at,
        body.attempt,
        tuple(
            json_codec.convert(incident.with_known_cause(each), Act, strict=False)
            for each in body.acts
        ),
        tuple(incident.from_json(each) for each in body.incidents),
        body.notes,
        None if body.step is None else gang.from_json(body.step, body.start),
        body.start,
        body.request,
        body.announced or (),
    )


def _text(document: Struct) -> str:
    # In ASCII, bytes equal characters. Secrets are scrubbed: a ConfigMap is widely readable.
    return json.dumps(json_codec.scrubbed(document), separators=(",", ":"), sort_keys=True)


def _size(data: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(text.encode()) for key, text in data.items())
