# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/v1/snapshot`: what one pod's sidecar reports to the controller, as JSON. See docs/snapshot.md.

All times in it are by the sidecar's clock, which never jumps. `at` is the time of the snapshot and
`age` its age when the answer was sent, so a reader converts all times to its own clock with one
offset.

Parts that seldom change are sent only if they have changed since the reader's cursor: None means
"unchanged". Reading checks types, ignores unknown keys, and drops observations of unknown kinds,
which `unread` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec import Struct, structs

from mwatch import json_codec
from mwatch.model.finding import Finding
from mwatch.model.observation import Beat, Observed, Sign, SignSource, SignState, StoredCheckpoints
from mwatch.model.snapshot.observed_wire import from_wire as observed_from_wire
from mwatch.model.snapshot.pod import FabricPort, Gpu, Nccl, PodFacts, PodId, WrapperState
from mwatch.model.snapshot.snapshot import Storage

VERSION = 1
EMPTY = b'{"version":%d}' % VERSION  # answer of a sidecar without a snapshot yet
STEADY = b'{"version":%d,"steady":true,' % VERSION
"""Prefix of a line in a stream that holds only the records of the ranks."""

REPORTED_SECONDS = 90.0
"""Maximum age of a valid report of a witness: the slowest is polled each minute."""

T = TypeVar("T")


class SidecarView(Struct, frozen=True, omit_defaults=True):
    """The conclusion of the sidecar; the controller has more inputs."""

    attempt: int | None = None
    phase: str | None = None
    iteration: int | None = None
    total_iterations: int | None = None
    world_size: int | None = None
    progress_at: float | None = None
    deadline_seconds: float | None = None
    is_blind: bool | None = None
    action: str | None = None  # what it would have done, and why
    reason: str | None = None
    step_seconds: float | None = None
    """Seconds of a slow step, as its engine has learnt it: a reader that polls learns it late."""
    unwatched: str | None = None  # why the trainer runs without the wrapper


class RankRow(Struct, array_like=True, gc=False):
    """One record of the probe, as it is sent: thousands come every second."""

    rank: int
    world_size: int | None
    iteration: int | None
    phase: str
    stack: str
    pid: int | None
    at: float
    risen: Any = None  # when the iteration last rose; older sidecars do not send it

    def beat(self) -> Beat:
        return Beat(
            self.rank, self.world_size, self.iteration, self.phase, self.stack, self.pid, None
        )

    def rose_at(self) -> float | None:
        """Return when the iteration last rose; None: not known."""
        return self.risen if isinstance(self.risen, int | float) else None


@dataclass(frozen=True, slots=True)
class PodSnapshot:
    at: float
    age: float
    cursor: str  # pass it as `after` to get only what is new
    gap: bool  # events after the reader's cursor were lost
    drift: float  # seconds by which the pod's wall clock was set forward since the start
    who: PodId
    view: SidecarView
    ranks: tuple[RankRow, ...]  # newest record of each
    signs: tuple[Observed, ...]  # newest report of each witness
    sources: Mapping[str, bool]
    gpus: tuple[Gpu, ...]
    nccl: Nccl | None
    fabric: tuple[FabricPort, ...]
    storage: Storage | None
    findings: tuple[Finding, ...]
    events: tuple[Observed, ...]
    """Log events, starts, exits and source changes after the cursor, in order."""
    unread: int
    wrapper: WrapperState | None = None
    stored: Observed | None = None
    stored_at: float | None = None
    """When the newest listing of the save folder began; `stored` is the first equal one."""
    pod: PodFacts | None = None
    signs_later: float = 0.0
    """Seconds for which the witnesses of `signs` have reported the same since."""

    @property
    def beats(self) -> tuple[Observed, ...]:
        """Newest record of each rank."""
        stream = self.who.pod
        return tuple([Observed(row.at, stream, row.beat()) for row in self.ranks])

    def shift(self, received_at: float) -> float:
        """Return the offset from the times of the snapshot to the reader's clock."""
        return received_at - self.age - self.at

    def after(self, before: PodSnapshot | None) -> PodSnapshot:
        """Return the snapshot completed with unchanged parts of `before`, without events."""
        if before is None:
            return replace(self, events=())
        return replace(
            self,
            events=(),
            wrapper=self.wrapper or before.wrapper,
            stored=self.stored or before.stored,
            pod=self.pod or before.pod,
        )

    def settled(self) -> PodSnapshot:
        """Return the snapshot without witnesses that have stopped reporting.

        Steady snapshots refer to it.
        """
        reported = (each for each in self.signs if self.at - each.at <= REPORTED_SECONDS)
        return replace(self, signs=tuple(reported))

    def observed(self, received_at: float) -> list[Observed]:
        """All observations for an engine, on the reader's clock."""
        shift = self.shift(received_at)
        every = (*self.events, *self._rises(), *self.beats, *self._folder())
        found = [Observed(at + shift, stream, what) for at, stream, what in every]
        shift += self.signs_later
        return found + [Observed(at + shift, stream, what) for at, stream, what in self.signs]

    def _folder(self) -> tuple[Observed, ...]:
        if self.stored is None or self.stored_at is None:
            return () if self.stored is None else (self.stored,)
        return (self.stored._replace(at=self.stored_at),)

    def _rises(self) -> list[Observed]:
        """Return the records of the ranks at the time when their iteration rose."""
        stream = self.who.pod
        rises = ((row.rose_at(), row) for row in self.ranks)
        return [
            Observed(since, stream, row.beat())
            for since, row in rises
            if since is not None and since < row.at
        ]


class _SignRow(Struct, array_like=True):
    source: str
    state: str
    rank: int | None
    text: str
    at: float


class _Document(Struct):
    """The JSON object; parts that a newer release may extend stay untyped."""

    version: int
    at: float
    age: float
    cursor: str
    who: PodId
    gap: bool = False
    drift: float = 0.0
    view: SidecarView = SidecarView()
    beats: tuple[RankRow, ...] = ()
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


class _Steady(Struct):
    at: float
    age: float
    cursor: str
    beats: tuple[RankRow, ...] = ()
    iteration: int | None = None
    progress_at: float | None = None
    stored_at: float | None = None


class _Head(Struct):
    version: Any = None
    at: Any = None


_SAME = tuple(
    name
    for name in _Document.__struct_fields__
    if name not in ("version", "beats", "signs", "findings", "events", "stored")
)


def decode(data: json_codec.Buffer) -> PodSnapshot:
    """Raises ValueError for an invalid snapshot or another version."""
    return _read(lambda kind: json_codec.decode(data, kind, strict=False))


def decode_steady(data: json_codec.Buffer, last: PodSnapshot) -> PodSnapshot:
    """Decode a steady snapshot, in which only times and iterations have changed since `last`.

    `last`: the last whole snapshot, settled. Raises ValueError.
    """
    new: _Steady = json_codec.decode(data, _Steady, strict=False)
    return PodSnapshot(
        at=new.at,
        age=new.age,
        cursor=new.cursor,
        gap=False,
        drift=last.drift,
        who=last.who,
        view=structs.replace(last.view, iteration=new.iteration, progress_at=new.progress_at),
        ranks=new.beats,
        signs=last.signs,
        sources=last.sources,
        gpus=last.gpus,
        nccl=last.nccl,
        fabric=last.fabric,
        storage=last.storage,
        findings=last.findings,
        events=(),
        unread=0,
        wrapper=last.wrapper,
        stored=last.stored,
        stored_at=new.stored_at,
        pod=last.pod,
        signs_later=last.signs_later + new.at - last.at,
    )


def from_wire(body: Mapping[str, Any]) -> PodSnapshot:
    """Read a snapshot from decoded JSON. Raises ValueError."""
    return _read(lambda kind: json_codec.convert(body, kind, strict=False))


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
    # An unknown cause of a newer release is dropped: the controller finds its own.
    findings, _ = _known(
        document.findings, lambda each: json_codec.convert(each, Finding, strict=False)
    )
    return PodSnapshot(
        **{name: getattr(document, name) for name in _SAME},
        ranks=document.beats,
        signs=signs,
        findings=findings,
        events=events,
        unread=unread + unknown,
        stored=None if document.stored is None else _stored(document.stored, stream),
    )


def _known(listed: tuple[Any, ...], read: Callable[[Any], T]) -> tuple[tuple[T, ...], int]:
    """Return what can be read, and count the rest."""
    found = []
    for each in listed:
        try:
            found.append(read(each))
        except ValueError:
            continue
    return tuple(found), len(listed) - len(found)


def _sign(row: _SignRow, stream: str) -> Observed:
    sign = Sign(SignSource(row.source), SignState(row.state), row.rank, row.text)
    return Observed(row.at, stream, sign)


def _stored(record: Mapping[str, Any], stream: str) -> Observed | None:
    found = observed_from_wire(record, stream)
    return found if isinstance(found.what, StoredCheckpoints) else None
