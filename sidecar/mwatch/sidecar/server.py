# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Serves the pages of a sidecar, and collects evidence and restarts in place for HTTP clients.

The controller reads `/v1/snapshot` of each pod. Its JSON is encoded at the first request and kept
until the next evaluation. Parts that rarely change (wrapper, checkpoint folder, mounts) are sent
only if they have changed since the client's cursor. Secrets are removed from all text.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from msgspec import structs

from mwatch import __version__, json_codec
from mwatch.config.sidecar import DEFAULT_HOST, SidecarSettings
from mwatch.errors import InputError
from mwatch.evidence.bundle import Ask
from mwatch.evidence.collector import EvidenceCase, EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.export.http.server import Page, Pages, Request, Server, in_url
from mwatch.model.finding import Finding
from mwatch.model.incident import bundle_id, is_incident_id
from mwatch.model.job import SignSeen
from mwatch.model.observation import Observed, StoredCheckpoints
from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome
from mwatch.model.snapshot.observed_wire import described, to_wire
from mwatch.model.snapshot.pod import PodFacts, PodId, WrapperState
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.model.snapshot.snapshot_wire import EMPTY, STEADY, VERSION, SidecarView
from mwatch.sidecar.event_buffer import NOWHERE, EventBuffer, LogPlace
from mwatch.sidecar.follow import URGENT, Followers, follow_seconds, material
from mwatch.sources.probe import RankReading
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask
from mwatch_trainer.evidence.incidents import MANIFEST, folder_bytes

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
    """Duration of a slow step (99th percentile)."""
    unwatched: str | None = None
    """Why the trainer runs without the wrapper."""


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
        self._who = json_codec.encode_scrubbed(who)
        self._clock = clock
        self._lock = threading.Lock()
        self._evaluated: Evaluated | None = None
        self._made: tuple[Evaluated, bytes] | None = None
        self._parts: dict[str, _Part] = {}
        self._stored: Observed | None = None
        """The newest listing of the save folder; the part has the time of its last change."""
        self.ring = EventBuffer(life, _encoded, newest=newest, place=place)
        self._urgent = 0
        self.followers = Followers(self)

    def observe(self, observed: Observed, file: int = 0) -> None:
        if isinstance(observed.what, StoredCheckpoints):
            before, self._stored = self._stored, observed
            if before is None or before.what != observed.what:
                self._change("stored", observed, _bounded(observed))
            return
        self.ring.add(observed, file)
        if isinstance(observed.what, URGENT):
            self._urgent = self.ring.newest

    def update(
        self, evaluated: Evaluated, wrapper: WrapperState | None, pod: PodFacts | None
    ) -> None:
        self._evaluated = evaluated
        if wrapper is not None:
            self._change("wrapper", wrapper, _on_our_clock(wrapper, evaluated.drift))
        if pod is not None:
            self._change("pod", pod, pod)
        self.followers.turn()

    def page(self, request: Request) -> Page:
        query = parse_qs(request.query)
        after = query.get("after", [""])[0]
        period = follow_seconds(query.get("follow", [""])[0])
        if period is not None and self._evaluated is not None:
            return self.followers.stream(after, period, request.was_asked)
        return Page(self.body(after), "application/json")

    def material(self) -> tuple[Any, ...]:
        assert self._evaluated is not None
        parts = tuple((name, part.number) for name, part in self._parts.items())
        return self._urgent, parts, *material(self._evaluated)

    def steady(self, cursor: str) -> bytes:
        """Return what is new if nothing but time has passed; see `mwatch.sidecar.follow`."""
        evaluated = self._evaluated
        assert evaluated is not None
        snapshot, clock = evaluated.snapshot, self._clock()
        body = {
            "at": snapshot.at,
            "stored_at": None if self._stored is None else self._stored.at,
            "iteration": snapshot.iteration,
            "progress_at": snapshot.progress_at,
            "beats": [_beat(each, evaluated) for each in evaluated.probes[:MAX_RANKS]],
        }
        age = max(0.0, clock - evaluated.monotonic)
        head = b'%b"age":%.3f,"cursor":"%b",' % (STEADY, age, cursor.encode())
        return head + json_codec.encode_scrubbed(body)[1:]

    def body(self, after: str = "") -> bytes:
        return self.whole(after)[0]

    def whole(self, after: str) -> tuple[bytes, str, int]:
        """Return the answer, its cursor, and the number of the last event in it."""
        evaluated = self._evaluated
        if evaluated is None:
            return EMPTY, after, 0
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
        return b"".join([*pieces, b"}"]), batch.cursor, batch.reached

    def _change(self, name: str, value: Any, body: Any) -> None:
        known = self._parts.get(name)
        if known is None or known.value != value:
            part = _Part(value, self.ring.mark(), json_codec.encode_scrubbed(body))
            self._parts = {**self._parts, name: part}

    def _fast(self, evaluated: Evaluated) -> bytes:
        with self._lock:
            if self._made is None or self._made[0] is not evaluated:
                stored_at = None if self._stored is None else self._stored.at
                members = json_codec.encode_scrubbed(
                    {**_members(evaluated), "stored_at": stored_at}
                )
                self._made = evaluated, b"," + members[1:-1] + b',"who":' + self._who
            return self._made[1]


def _members(evaluated: Evaluated) -> dict[str, Any]:
    snapshot = evaluated.snapshot
    return {
        "at": snapshot.at,
        "drift": round(evaluated.drift, 3),
        "view": _view(snapshot, evaluated),
        "beats": [_beat(each, evaluated) for each in evaluated.probes[:MAX_RANKS]],
        "signs": [_sign(each) for each in evaluated.signs[:MAX_SIGNS]],
        "sources": {name: state.is_up for name, state in snapshot.sources.items()},
        "gpus": snapshot.gpus,
        "nccl": snapshot.nccl,
        "fabric": snapshot.fabric,
        "storage": snapshot.storage,
        "findings": [_finding(each) for each in snapshot.findings[:MAX_FINDINGS]],
    }


def _view(snapshot: Snapshot, evaluated: Evaluated) -> SidecarView:
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
        step_seconds=evaluated.step_seconds,
        unwatched=evaluated.unwatched and evaluated.unwatched[:_MAX_TEXT],
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
    """Keep only the newest checkpoints: a controller never chooses older ones."""
    what = observed.what
    assert isinstance(what, StoredCheckpoints)
    newest = sorted(what.checkpoints, key=lambda each: each.iteration)[-MAX_CHECKPOINTS:]
    return {"at": observed.at, **described(what._replace(checkpoints=tuple(newest)))}


def _on_our_clock(wrapper: WrapperState, drift: float) -> WrapperState:
    """Correct times of the wall clock, which may have been set since this process started."""
    end = wrapper.exit
    moved = None if end is None else structs.replace(end, at=end.at - drift)
    return structs.replace(wrapper, started_at=wrapper.started_at - drift, exit=moved)


def _encoded(observed: Observed) -> bytes:
    """Encode without the stream, which is always this pod, and without unknown values."""
    record = to_wire(observed)
    del record["stream"]
    return json_codec.encode_scrubbed(
        {name: value for name, value in record.items() if value not in (None, {})}
    )


NAME = "sidecar.json"
_KEEP_SECONDS = 10.0
_IPV4 = "0.0.0.0"


class SidecarServer:
    """The HTTP server, and the file on the volume that names its port.

    The port differs if the usual one is taken, so clients in the pod read it from `sidecar.json`.
    The volume may appear later or be emptied: the file is written again if it is missing.
    """

    def __init__(self, settings: SidecarSettings, pages: Pages, now: float) -> None:
        self._settings = settings
        try:
            self._server = _bound(settings, pages)
        except OSError as error:
            text = f"cannot listen on {settings.host} port {settings.port}: {error.strerror}"
            raise InputError(f"{text}; name another with --port or --host") from None
        self._path = settings.dir / NAME
        self._document = {
            "port": self._server.port,
            "pid": os.getpid(),
            "run": settings.run,
            "pod": settings.pod,
            "started_at": now,
            "mwatch": __version__,
        }
        self._is_written = False
        self._problem: str | None = None
        self._write_file()
        self._keep_at = time.monotonic()

    @property
    def where(self) -> str:
        return f"http://{in_url(self._settings.host)}:{self._server.port}"

    @property
    def failures(self) -> int:
        return self._server.failures

    def keep_file(self) -> str | None:
        """Write the file if it is missing, checking every 10 s; return a new problem."""
        now = time.monotonic()
        if now < self._keep_at:
            return None
        before = self._problem
        self._write_file()
        self._keep_at = now + (_KEEP_SECONDS if self._is_written else 0.0)
        return self._problem if self._problem != before else None

    def close(self) -> None:
        self._server.close()
        if self._is_written:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write_file(self) -> None:
        if self._is_written and self._problem is None and self._path.exists():
            return
        try:
            contract.write_json(str(self._path), self._document)
            self._is_written, self._problem = True, None
        except FileNotFoundError:
            self._is_written, self._problem = False, None  # the volume does not exist yet
        except OSError as error:
            self._problem = f"cannot write {self._path}: {error.strerror or error}"


def _bound(settings: SidecarSettings, pages: Pages) -> Server:
    try:
        return Server(pages, port=settings.port, host=settings.host)
    except OSError:
        if settings.host != DEFAULT_HOST:
            raise
    return Server(pages, port=settings.port, host=_IPV4)  # this host has no IPv6


_CAUSE = "asked"
"""Used in the id of a requested bundle, in place of a cause."""
_LIST_SECONDS = 5.0
_MAX_MANIFEST_BYTES = 1 << 20


class EvidenceApi:
    """Collects one bundle at a time; a request that arrives meanwhile gets that one.

    A bundle is finished when its manifest exists, which is written last.
    """

    def __init__(
        self,
        collector: EvidenceCollector,
        files: IncidentFiles,
        now: Callable[[], float],
        running: Callable[[], int],
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """`running`: the number of the current attempt. `asked`: called at each request, which
        usually precedes a decision."""
        self._collector = collector
        self._files = files
        self._now = now
        self._running = running
        self._asked = asked
        self._lock = threading.Lock()
        self._case: EvidenceCase | None = None
        self._listing = threading.Lock()
        self._listed: list[Mapping[str, Any]] = []
        self._listed_at = -_LIST_SECONDS

    def ask(self, reason: str) -> str | None:
        self._asked()
        with self._lock:
            if self._case is None or self._case.saved.is_set():
                attempt = self._running()
                id = bundle_id(self._now(), attempt, _CAUSE, self._files.names())
                self._files.prune(keep=id)
                folder = self._files.folder(id)
                self._case = self._collector.want(id, folder, attempt, reason)
            return self._case.id

    def manifest(self, id: str, wait_seconds: float) -> Mapping[str, Any] | None:
        with self._lock:
            case = self._case
        if case is not None and case.id == id and not case.saved.wait(wait_seconds):
            return None
        folder = self.folder(id)
        return None if folder is None else _manifest(folder)

    def listing(self) -> list[Mapping[str, Any]]:
        """Return names and sizes, oldest first. No token is needed, so the list is cached, and
        only one request waits for storage that hangs."""
        if self._listing.acquire(blocking=False):
            try:
                if time.monotonic() - self._listed_at >= _LIST_SECONDS:
                    self._listed = [self._about(id) for id in self._files.names()]
                    self._listed_at = time.monotonic()
            finally:
                self._listing.release()
        return self._listed

    def folder(self, id: str) -> Path | None:
        if not is_incident_id(id):
            return None
        folder = self._files.folder(id)
        return folder if (folder / MANIFEST).is_file() else None

    def _about(self, id: str) -> Mapping[str, Any]:
        folder = self._files.folder(id)
        state = "there" if (folder / MANIFEST).is_file() else "not there"
        return {"id": id, "state": state, "bytes": folder_bytes(str(folder))}


def _manifest(folder: Path) -> Mapping[str, Any] | None:
    try:
        with (folder / MANIFEST).open("rb") as file:
            found = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


_ASK_SECONDS = 5.0
_KINDS = {each.value: each for each in RestartOutcome}


def ask_wrapper_to_restart(
    ask: Ask, order: RestartOrder, *, is_check: bool = False
) -> RestartAnswer:
    """Ask the wrapper to end its trainer and start the next attempt in the same pod.

    The wrapper decides: only in act mode, only for the named attempt, and only once. `is_check`:
    only ask whether a restart is possible.
    """
    request: dict[str, Any] = {
        "op": "restart",
        "attempt": order.attempt,
        "reason": f"{order.who}: {order.reason}",
        "grace_seconds": order.grace_seconds,
        "save": order.with_save,
        "check": is_check,
    }
    if order.resume_from is not None:
        request["resume_from"] = order.resume_from
    try:
        answer = ask(request, _ASK_SECONDS)
    except (OSError, ValueError) as error:
        return RestartAnswer(RestartOutcome.UNREACHABLE, f"the wrapper did not answer: {error}")
    running = answer.get("attempt")
    attempt = running if isinstance(running, int) else None
    if answer.get("ok") is True:
        if answer.get("already") is True:
            text = f"attempt {order.attempt} was asked to restart before"
            return RestartAnswer(RestartOutcome.ALREADY, text, attempt)
        return RestartAnswer(RestartOutcome.ACCEPTED, attempt=attempt)
    # Without a wrapper, the answer has no kind.
    outcome = _KINDS.get(str(answer.get("kind")), RestartOutcome.UNREACHABLE)
    return RestartAnswer(outcome, str(answer.get("error"))[:500], attempt)


_EVIDENCE_SECONDS = 25.0


def restart_with_evidence(
    volume: Path, evidence: EvidenceApi, order: RestartOrder
) -> RestartAnswer:
    """Check whether a restart in place is possible, wait for evidence, then restart."""

    def ask_wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        return ask(str(volume), request, seconds)

    check = ask_wrapper_to_restart(ask_wrapper, order, is_check=True)
    if check.outcome is not RestartOutcome.ACCEPTED:
        return check
    saved = None
    if order.wants_evidence:
        saved = evidence.ask(f"before a restart in place by {order.who}: {order.reason}")
        if saved is not None:
            evidence.manifest(saved, _EVIDENCE_SECONDS)
    return ask_wrapper_to_restart(ask_wrapper, order)._replace(evidence=saved)
