# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/v1/snapshot`: what the controller reads of this pod, encoded once for each evaluation.

The JSON is encoded at the first request and kept until the next evaluation. Parts that rarely
change (wrapper, checkpoint folder, mounts) are sent only if they have changed since the client's
cursor. Secrets are removed from each text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from msgspec import structs

from mwatch import json_codec
from mwatch.export.http.server import Page, Request
from mwatch.model.finding import Finding
from mwatch.model.job import SignSeen
from mwatch.model.observation import Observed, StoredCheckpoints
from mwatch.model.snapshot.observed_wire import described, to_wire
from mwatch.model.snapshot.pod import PodFacts, PodId, WrapperState
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.model.snapshot.snapshot_wire import EMPTY, VERSION, SidecarView
from mwatch.sidecar.event_buffer import NOWHERE, EventBuffer, LogPlace
from mwatch.sources.probe import RankReading
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_RANKS = 1024
MAX_SIGNS = 4096
MAX_FINDINGS = 64
MAX_CHECKPOINTS = 200
_MAX_TEXT = 500


class Evaluated(NamedTuple):
    snapshot: Snapshot
    monotonic: float
    drift: float
    probes: tuple[RankReading, ...]
    probed_at: float
    """When the probes were read, on the clock of `snapshot.at`."""
    signs: Sequence[SignSeen]
    progressed: Mapping[int, float] = {}
    step_seconds: float | None = None
    """Of a slow step."""


class _Part(NamedTuple):
    value: Any
    number: int
    body: bytes


class SnapshotPage:
    def __init__(
        self,
        who: PodId,
        life: str,
        *,
        newest: int = 0,
        place: LogPlace = NOWHERE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`life`, `newest`, `place`: see EventBuffer."""
        self._who = _dumped(who)
        self._clock = clock
        self._lock = threading.Lock()
        self._evaluated: Evaluated | None = None
        self._made: tuple[Evaluated, bytes] | None = None
        self._parts: dict[str, _Part] = {}
        self._stored: Observed | None = None
        """The newest content of the save folder; the part has the time of the last change."""
        self.ring = EventBuffer(life, _encoded, newest=newest, place=place)

    def observe(self, observed: Observed, file: int = 0) -> None:
        if isinstance(observed.what, StoredCheckpoints):
            before, self._stored = self._stored, observed
            if before is None or before.what != observed.what:
                self._change("stored", observed, _bounded(observed))
            return
        self.ring.add(observed, file)

    def update(
        self, evaluated: Evaluated, wrapper: WrapperState | None, pod: PodFacts | None
    ) -> None:
        self._evaluated = evaluated
        if wrapper is not None:
            self._change("wrapper", wrapper, _on_our_clock(wrapper, evaluated.drift))
        if pod is not None:
            self._change("pod", pod, pod)

    def page(self, request: Request) -> Page:
        after = parse_qs(request.query).get("after", [""])[0]
        body = self.body(after)
        return Page(body, "application/json")

    def body(self, after: str = "") -> bytes:
        evaluated = self._evaluated
        if evaluated is None:
            return EMPTY
        batch = self.ring.after(after)
        age = max(0.0, self._clock() - evaluated.monotonic)
        pieces = [
            b'{"version":%d,"age":%.3f,"cursor":"%b","gap":%b'
            % (VERSION, age, batch.cursor.encode(), b"true" if batch.gap else b"false"),
            self._fast(evaluated),
            b',"events":[' + b",".join(batch.bodies) + b"]",
        ]
        for name, part in sorted(self._parts.items()):
            if part.number > batch.after:
                pieces.append(b',"%b":%b' % (name.encode(), part.body))
        return b"".join([*pieces, b"}"])

    def _change(self, name: str, value: Any, body: Any) -> None:
        known = self._parts.get(name)
        if known is None or known.value != value:
            part = _Part(value, self.ring.mark(), _dumped(body))
            self._parts = {**self._parts, name: part}

    def _fast(self, evaluated: Evaluated) -> bytes:
        with self._lock:
            if self._made is None or self._made[0] is not evaluated:
                stored_at = None if self._stored is None else self._stored.at
                members = _dumped({**_members(evaluated), "stored_at": stored_at})
                self._made = evaluated, b"," + members[1:-1] + b',"who":' + self._who
            return self._made[1]


def _members(evaluated: Evaluated) -> dict[str, Any]:
    snapshot = evaluated.snapshot
    return {
        "at": snapshot.at,
        "drift": round(evaluated.drift, 3),
        "view": _view(snapshot, evaluated.step_seconds),
        "beats": [_beat(each, evaluated) for each in evaluated.probes[:MAX_RANKS]],
        "signs": [_sign(each) for each in evaluated.signs[:MAX_SIGNS]],
        "sources": {name: state.is_up for name, state in snapshot.sources.items()},
        "gpus": snapshot.gpus,
        "nccl": snapshot.nccl,
        "fabric": snapshot.fabric,
        "storage": snapshot.storage,
        "findings": [_finding(each) for each in snapshot.findings[:MAX_FINDINGS]],
    }


def _view(snapshot: Snapshot, step_seconds: float | None) -> SidecarView:
    decision = snapshot.decision
    return SidecarView(
        attempt=snapshot.attempt,
        phase=None if snapshot.phase is None else snapshot.phase.value,
        iteration=snapshot.iteration,
        total_iterations=snapshot.total_iterations,
        world_size=snapshot.world_size,
        progress_at=snapshot.progress_at,
        deadline_seconds=snapshot.hang_deadline_seconds,
        is_blind=snapshot.is_blind,
        action=None if decision is None else decision.action.value,
        reason=None if decision is None else decision.reason[:_MAX_TEXT],
        step_seconds=step_seconds,
    )


def _beat(reading: RankReading, evaluated: Evaluated) -> list[Any]:
    beat = reading.beat
    at = round(evaluated.probed_at - reading.age_seconds, 3)
    known = [beat.rank, beat.world_size, beat.iteration, beat.phase, beat.stack, beat.pid, at]
    since = evaluated.progressed.get(beat.rank)
    return known if since is None else [*known, round(min(since, at), 3)]


def _sign(seen: SignSeen) -> list[Any]:
    sign = seen.sign
    text = sign.text[:_MAX_TEXT]
    return [sign.source.value, sign.state.value, sign.rank, text, round(seen.at, 3)]


def _finding(finding: Finding) -> dict[str, Any]:
    sent = replace(finding, evidence=(), summary=finding.summary[:_MAX_TEXT])
    body: dict[str, Any] = json_codec.to_builtins(sent)
    return {name: value for name, value in body.items() if value not in (None, [], ())}


def _bounded(observed: Observed) -> dict[str, Any]:
    """Keep the newest: a controller never chooses older ones."""
    what = observed.what
    assert isinstance(what, StoredCheckpoints)
    newest = sorted(what.checkpoints, key=lambda each: each.iteration)[-MAX_CHECKPOINTS:]
    return {"at": observed.at, **described(what._replace(checkpoints=tuple(newest)))}


def _on_our_clock(wrapper: WrapperState, drift: float) -> WrapperState:
    """Correct the times of the wall clock, which may have been set since the start."""
    end = wrapper.exit
    moved = None if end is None else structs.replace(end, at=end.at - drift)
    return structs.replace(wrapper, started_at=wrapper.started_at - drift, exit=moved)


def _encoded(observed: Observed) -> bytes:
    """Encode without the stream, which is always this pod, and without unknown values."""
    record = to_wire(observed)
    del record["stream"]
    return _dumped({name: value for name, value in record.items() if value not in (None, {})})


def _dumped(value: Any) -> bytes:
    """Encode as JSON without secrets; if there may be one, each text is scrubbed alone."""
    try:
        data = json_codec.encode(value)
        if Scrubber().scrub(data) == data:
            return data
    except UnicodeEncodeError:
        pass  # a file name that is not valid text
    return json_codec.encode(_scrubbed(json_codec.to_builtins(value)))


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return Scrubber().text(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(each) for key, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_scrubbed(each) for each in value]
    return value
