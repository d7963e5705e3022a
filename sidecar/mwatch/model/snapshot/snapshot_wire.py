# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/v1/snapshot`: what one pod's sidecar tells the controller, as JSON. See docs/snapshot.md.

Every time in it is of one clock, the sidecar's, which never jumps; `at` is the moment of the look
and `age` how long ago that was when the answer was sent. So whoever reads it brings all times to
its own clock by one number, and clocks that differ do not matter.

Parts that seldom change are sent only when they have changed since the reader's cursor: None here
means "as you know it". Reading ignores what it does not know, and drops single observations of
kinds that it does not know, counted in `unread`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from mwatch.model.finding import Cause, Culprit, CulpritState, Finding, Severity
from mwatch.model.observation import Beat, Observed, Sign, SignSource, SignState, StoredCheckpoints
from mwatch.model.snapshot.hardware import FabricPort, Gpu, Nccl
from mwatch.model.snapshot.observed_wire import from_wire as observed_from_wire
from mwatch.model.snapshot.pod import DataFile, Mount, PodFacts, Who
from mwatch.model.snapshot.snapshot import Storage
from mwatch.model.snapshot.wrapper import TrainerEnd, WrapperState

VERSION = 1
BEAT = Beat._fields[:-1]
"""A beat is these and its moment; the attempt is the wrapper's."""

_SIGN_SOURCES = {each.value: each for each in SignSource}
_SIGN_STATES = {each.value: each for each in SignState}
_USUAL_GPU = {"throttle": (), "number": 0, "uuid": "", "name": "", **Gpu._field_defaults}
_GPU = tuple((name, _USUAL_GPU.get(name)) for name in Gpu._fields)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SidecarView:
    """What the sidecar itself makes of what it sees; the controller sees more."""

    attempt: int | None
    phase: str | None
    iteration: int | None
    total_iterations: int | None
    world_size: int | None
    progress_at: float | None
    deadline_seconds: float | None
    is_blind: bool | None
    action: str | None
    """What it would have done about it, and why."""
    reason: str | None
    step_seconds: float | None = None
    """Of a slow step, as its engine has learnt: who asks every few seconds learns it late."""


@dataclass(frozen=True, slots=True)
class PodSnapshot:
    at: float
    age: float
    cursor: str
    """Give it as `after` to get only what is new."""
    gap: bool
    """Something between the reader's cursor and the first event was lost."""
    drift: float
    """By how much the wall clock of the pod was set forward since the sidecar started."""
    who: Who
    view: SidecarView
    beats: tuple[Observed, ...]
    """The newest record of each rank."""
    progressed: Mapping[int, float]
    """By rank: when its iteration last rose, where that is known."""
    signs: tuple[Observed, ...]
    """The newest word of each witness."""
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


def plain(value: Any) -> Any:
    """A record as an object, without what is None or empty."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _object(dict(zip(value._fields, value, strict=True)))
    if is_dataclass(value):
        return _object({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def _object(body: Mapping[str, Any]) -> dict[str, Any]:
    found = ((name, plain(value)) for name, value in body.items())
    return {name: value for name, value in found if value is not None and value not in ([], {})}


def from_wire(body: Mapping[str, Any]) -> PodSnapshot:
    """ValueError for what is no snapshot, or of a version that cannot be read."""
    version = body.get("version")
    if version != VERSION:
        raise ValueError(f"snapshot version {version!r} cannot be read; this is {VERSION}")
    try:
        return _snapshot(body)
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"this is no snapshot: {type(error).__name__}: {error}") from None


def _snapshot(body: Mapping[str, Any]) -> PodSnapshot:
    who = _restored(Who, body["who"])
    stream = who.pod
    events, unread = _events(body.get("events", ()), stream)
    signs, unknown = _signs(body.get("signs", ()), stream)
    stored, wrapper, pod = (body.get(name) for name in ("stored", "wrapper", "pod"))
    return PodSnapshot(
        at=float(body["at"]),
        age=float(body["age"]),
        cursor=str(body["cursor"]),
        gap=bool(body.get("gap")),
        drift=float(body.get("drift", 0.0)),
        who=who,
        view=_restored(SidecarView, body.get("view", {})),
        beats=tuple(_beat(each, stream) for each in body.get("beats", ())),
        progressed=_progressed(body.get("beats", ())),
        signs=signs,
        sources={str(name): bool(is_up) for name, is_up in body.get("sources", {}).items()},
        gpus=tuple(_gpu(each) for each in body.get("gpus", ())),
        nccl=_restored(Nccl, body["nccl"]) if body.get("nccl") else None,
        fabric=tuple(_port(each) for each in body.get("fabric", ())),
        storage=_restored(Storage, body["storage"]) if body.get("storage") else None,
        findings=tuple(_findings(body.get("findings", ()))),
        events=events,
        unread=unread + unknown,
        wrapper=None if wrapper is None else _wrapper(wrapper),
        stored=None if stored is None else _stored(stored, stream),
        stored_at=None if body.get("stored_at") is None else float(body["stored_at"]),
        pod=None if pod is None else _pod(pod),
    )


def _restored(kind: type[T], record: Mapping[str, Any]) -> T:
    """Of a kind whose fields are plain values; one that is missing is None, or its default."""
    return kind(**{name: record.get(name, usual) for name, usual in _usual(kind)})  # type: ignore[arg-type]


@cache
def _usual(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Each field with its default, or None."""
    names = getattr(kind, "_fields", None) or [each.name for each in fields(kind)]
    defaults = getattr(kind, "_field_defaults", {})
    return tuple((name, defaults.get(name)) for name in names)


def _events(listed: Any, stream: str) -> tuple[tuple[Observed, ...], int]:
    found, unread = [], 0
    for each in listed:
        try:
            found.append(observed_from_wire(each, stream))
        except (ValueError, TypeError):
            unread += 1
    return tuple(found), unread


def _beat(values: Any, stream: str) -> Observed:
    beat = Beat._make([*values[: len(BEAT)], None])
    return Observed(float(values[len(BEAT)]), stream, beat)


def _progressed(listed: Any) -> dict[int, float]:
    """An eighth value, which older sidecars do not send."""
    after = len(BEAT) + 1
    told = ((each[0], each[after]) for each in listed if len(each) > after)
    return {rank: float(at) for rank, at in told if isinstance(at, int | float)}


def _signs(listed: Any, stream: str) -> tuple[tuple[Observed, ...], int]:
    found, unread = [], 0
    for source, state, rank, text, at, *_ in listed:
        if source not in _SIGN_SOURCES or state not in _SIGN_STATES:
            unread += 1
            continue
        sign = Sign(_SIGN_SOURCES[source], _SIGN_STATES[state], rank, text)
        found.append(Observed(float(at), stream, sign))
    return tuple(found), unread


def _gpu(record: Mapping[str, Any]) -> Gpu:
    get = record.get
    found = Gpu._make([get(name, usual) for name, usual in _GPU])
    return found._replace(throttle=tuple(found.throttle), pids=tuple(found.pids))


def _port(record: Mapping[str, Any]) -> FabricPort:
    return _restored(FabricPort, {"errors": {}, **record})


def _findings(listed: Any) -> list[Finding]:
    known = []
    for each in listed:
        try:
            known.append(_finding(each))
        except (ValueError, KeyError):
            continue  # a cause of a newer release: the controller finds its own
    return known


def _finding(record: Mapping[str, Any]) -> Finding:
    return Finding(
        detector=str(record["detector"]),
        cause=Cause(record["cause"]),
        severity=Severity(record["severity"]),
        summary=str(record.get("summary", "")),
        since_time=record.get("since_time"),
        since_iteration=record.get("since_iteration"),
        confidence=float(record.get("confidence", 1.0)),
        culprit=_culprit(record.get("culprit")),
        cannot_heal=bool(record.get("cannot_heal")),
        fault=record.get("fault"),
        fingerprint=str(record.get("fingerprint", "")),
    )


def _culprit(record: Mapping[str, Any] | None) -> Culprit | None:
    if record is None:
        return None
    state = record.get("state")
    return Culprit(
        rank=record.get("rank"),
        state=None if state is None else CulpritState(state),
        coordinates=record.get("coordinates", {}),
        pod=record.get("pod"),
        node=record.get("node"),
        gpu_uuid=record.get("gpu_uuid"),
        xid=record.get("xid"),
    )


def _wrapper(record: Mapping[str, Any]) -> WrapperState:
    ended = record.get("exit")
    usual = {"changes": (), "mode": "", "is_final": False, "argv": ()}
    found = _restored(TrainerEnd, {"asked": False, **ended}) if ended else None
    values = {**usual, **record, "exit": found}
    values["changes"], values["argv"] = tuple(values["changes"]), tuple(values["argv"])
    return _restored(WrapperState, values)


def _stored(record: Mapping[str, Any], stream: str) -> Observed | None:
    found = observed_from_wire(record, stream)
    return found if isinstance(found.what, StoredCheckpoints) else None


def _pod(record: Mapping[str, Any]) -> PodFacts:
    data = tuple(_restored(DataFile, each) for each in record.get("data", ()))
    mounts = tuple(
        _restored(Mount, {"is_read_only": False, **each}) for each in record.get("mounts", ())
    )
    return PodFacts(data, mounts, record.get("tracker"))
