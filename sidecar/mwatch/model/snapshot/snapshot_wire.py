# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/v1/snapshot`: what one pod's sidecar reports to the controller, as JSON. See docs/snapshot.md.

Every time in it is of one clock, the sidecar's, which never jumps; `at` is the moment of the look
and `age` how long ago that was when the answer was sent. So a reader brings all times to its own
clock by one number, and clocks that differ do not matter.

Parts that seldom change are sent only when they have changed since the reader's cursor: None here
means "as you know it". Reading checks types, ignores unknown keys, and drops single observations
of unknown kinds, counted in `unread`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mwatch import json_codec
from mwatch.model.finding import Finding
from mwatch.model.observation import Beat, Observed, Sign, SignSource, SignState, StoredCheckpoints
from mwatch.model.snapshot.observed_wire import from_wire as observed_from_wire
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl, PodFacts, PodId, WrapperState
from mwatch.model.snapshot.snapshot import Storage

VERSION = 1
EMPTY = b'{"version":%d}' % VERSION  # The answer of a sidecar that has not looked yet

T = TypeVar("T")


class SidecarView(Struct, frozen=True, omit_defaults=True):
    """What the sidecar itself concludes; the controller sees more."""

    attempt: int | None = None
    phase: str | None = None
    iteration: int | None = None
    total_iterations: int | None = None
    world_size: int | None = None
    progress_at: float | None = None
    deadline_seconds: float | None = None
    is_blind: bool | None = None
    action: str | None = None  # What it would have done, and why
    reason: str | None = None
    step_seconds: float | None = None
    """Of a slow step, as its engine has learnt: a reader that polls every few seconds learns it
    late."""


@dataclass(frozen=True, slots=True)
class PodSnapshot:
    at: float
    age: float
    cursor: str  # Give it as `after` to get only what is new
    gap: bool  # Something between the reader's cursor and the first event was lost
    drift: float  # By how much the wall clock of the pod was set forward since the sidecar started
    who: PodId
    view: SidecarView
    beats: tuple[Observed, ...]  # The newest record of each rank
    progressed: Mapping[int, float]  # By rank: when its iteration last rose, where that is known
    signs: tuple[Observed, ...]  # The newest word of each witness
    sources: Mapping[str, bool]
    gpus: tuple[Gpu, ...]
    nccl: Nccl | None
    fabric: tuple[FabricPort, ...]
    storage: Storage | None
    findings: tuple[Finding, ...]
    events: tuple[Observed, ...]
    """Lines of the log, starts, ends, sights: those after the cursor, in their order."""
    unread: int
    wrapper: WrapperState | None = None
    stored: Observed | None = None
    stored_at: float | None = None
    """When the newest look into the save folder began; `stored`: the first that found it so."""
    pod: PodFacts | None = None

    def shift(self, received_at: float) -> float:
        """What to add to a time in here for one of the reader's clock, by which it came then."""
        return received_at - self.age - self.at

    def observed(self, received_at: float) -> list[Observed]:
        """All of it for an engine, on the reader's clock."""
        shift = self.shift(received_at)
        every = (*self.events, *self._rises(), *self.beats, *self.signs, *self._folder())
        return [Observed(at + shift, stream, what) for at, stream, what in every]

    def _folder(self) -> tuple[Observed, ...]:
        if self.stored is None or self.stored_at is None:
            return () if self.stored is None else (self.stored,)
        return (self.stored._replace(at=self.stored_at),)

    def _rises(self) -> list[Observed]:
        """The same records as of when their iteration rose."""
        found = []
        for observed in self.beats:
            beat = observed.what
            since = self.progressed.get(beat.rank) if isinstance(beat, Beat) else None
            if since is not None and since < observed.at:
                found.append(observed._replace(at=since))
        return found


class _BeatRow(Struct, array_like=True):
    rank: int
    world_size: int | None
    iteration: int | None
    phase: str
    stack: str
    pid: int | None
    at: float
    risen: Any = None  # When the iteration last rose; older sidecars do not send it


class _SignRow(Struct, array_like=True):
    source: str
    state: str
    rank: int | None
    text: str
    at: float


class _Document(Struct):
    """The JSON object. What a newer release may extend with unknown kinds stays plain here."""

    version: int
    at: float
    age: float
    cursor: str
    who: PodId
    gap: bool = False
    drift: float = 0.0
    view: SidecarView = SidecarView()
    beats: tuple[_BeatRow, ...] = ()
    signs: tuple[_SignRow, ...] = ()
    sources: dict[str, bool] = {}
    gpus: tuple[Gpu, ...] = ()
    nccl: Nccl | None = None
    fabric: tuple[FabricPort, ...] = ()
    storage: Storage | None = None
    findings: tuple[Any, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    wrapper: WrapperState | None = None
    stored: dict[str, Any] | None = None
    stored_at: float | None = None
    pod: PodFacts | None = None


class _Head(Struct):
    version: Any = None
    at: Any = None


_SAME = tuple(
    name
    for name in _Document.__struct_fields__
    if name not in ("version", "beats", "signs", "findings", "events", "stored")
)


def decode(data: json_codec.Buffer) -> PodSnapshot:
    """ValueError for what is no snapshot, or of a version that cannot be read."""
    return _read(lambda kind: json_codec.decode(data, kind, strict=False))


def from_wire(body: Mapping[str, Any]) -> PodSnapshot:
    """The same of JSON that was decoded already."""
    return _read(lambda kind: msgspec.convert(body, kind, strict=False))


def _read(decoded: Callable[[type[Any]], Any]) -> PodSnapshot:
    try:
        document: _Document = decoded(_Document)
        version = document.version
    except ValueError as error:
        head = decoded(_Head)
        version = head.version
        if version == VERSION:
            why = "the sidecar has not looked yet" if head.at is None else error
            raise ValueError(f"not a snapshot: {why}") from None
    if version != VERSION:
        raise ValueError(f"snapshot version {version!r} cannot be read; this is {VERSION}")
    return _snapshot(document)


def _snapshot(document: _Document) -> PodSnapshot:
    stream = document.who.pod
    events, unread = _known(document.events, lambda each: observed_from_wire(each, stream))
    signs, unknown = _known(document.signs, lambda each: _sign(each, stream))
    # A cause of a newer release: the controller finds its own.
    findings, _ = _known(
        document.findings, lambda each: msgspec.convert(each, Finding, strict=False)
    )
    return PodSnapshot(
        **{name: getattr(document, name) for name in _SAME},
        beats=tuple(_beat(each, stream) for each in document.beats),
        progressed={
            each.rank: float(each.risen)
            for each in document.beats
            if isinstance(each.risen, int | float)
        },
        signs=signs,
        findings=findings,
        events=events,
        unread=unread + unknown,
        stored=None if document.stored is None else _stored(document.stored, stream),
    )


def _known(listed: tuple[Any, ...], read: Callable[[Any], T]) -> tuple[tuple[T, ...], int]:
    """Those that can be read, and how many cannot."""
    found = []
    for each in listed:
        try:
            found.append(read(each))
        except ValueError:
            continue
    return tuple(found), len(listed) - len(found)


def _beat(row: _BeatRow, stream: str) -> Observed:
    beat = Beat(row.rank, row.world_size, row.iteration, row.phase, row.stack, row.pid, None)
    return Observed(row.at, stream, beat)


def _sign(row: _SignRow, stream: str) -> Observed:
    sign = Sign(SignSource(row.source), SignState(row.state), row.rank, row.text)
    return Observed(row.at, stream, sign)


def _stored(record: Mapping[str, Any], stream: str) -> Observed | None:
    found = observed_from_wire(record, stream)
    return found if isinstance(found.what, StoredCheckpoints) else None
