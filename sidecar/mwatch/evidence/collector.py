# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Saves the evidence of incidents while the watching goes on, and hears what it says.

A stall is asked about as soon as it is found: the stacks and the flight recorder name the rank
that the others wait for, and are the second witness that an action needs. One bundle for each
incident; before a kill it is waited for, within its limit. Of an attempt that is over nothing is
dumped, and what its dump says is not told of the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.evidence.bundle import Bundle, Extra, collect
from mwatch.evidence.offload import OffPod
from mwatch.model.observation import Observed
from mwatch_trainer.control.client import ask

_WAIT_SECONDS = 25.0
"""A little more than a bundle may take."""
_KEEP_SECONDS = 5.0
_MOST_ASKS = 15
_MAX_WAITING = 16
_MAX_HEARD = 1 << 16


class EvidenceCase:
    """The evidence of one incident: asked for, there once `saved` is set, and heard, what it says
    of the ranks, once `done` is."""

    def __init__(self, id: str, folder: Path, attempt: int, reason: str = "") -> None:
        self.id = id
        self.folder = folder
        self.attempt = attempt
        self.reason = reason
        self.bundle: Bundle | None = None
        self.asks = 0
        """How often it was asked whether the copy off the pod is done."""
        self.saved = threading.Event()
        self.done = threading.Event()


class _Heard(NamedTuple):
    attempt: int
    observed: Observed


class EvidenceCollector:
    def __init__(
        self,
        volume: Path,
        stream: str,
        now: Callable[[], float],
        running: Callable[[], int],
        *,
        world_size: Callable[[], int | None] = lambda: None,
        extra: Extra | None = None,
        off_pod: OffPod | None = None,
    ) -> None:
        """`running`: the number of the attempt that runs now. `world_size`: of the job, of which
        this volume may hold one pod. `extra`: more for each bundle. `off_pod`: brings it away;
        None: what it is collected into outlives the pod by itself."""
        self._world_size = world_size
        self._extra = extra
        self._off_pod = off_pod
        self._volume = str(volume)
        self._stream = stream
        self._now = now
        self._running = running
        self._changed = threading.Condition()
        self._wanted: deque[EvidenceCase] = deque()
        self._changed_since: dict[str, EvidenceCase] = {}
        self._heard: deque[_Heard] = deque(maxlen=_MAX_HEARD)
        self._is_closing = False
        self.errors: deque[Exception] = deque(maxlen=_MAX_WAITING)
        """Faults of ours, for whoever tells them."""
        self._thread = threading.Thread(target=self._work, name="mwatch-cases", daemon=True)
        self._thread.start()

    def want(self, id: str, folder: Path, attempt: int, reason: str = "") -> EvidenceCase:
        case = EvidenceCase(id, folder, attempt, reason)
        with self._changed:
            self._wanted.append(case)
            if len(self._wanted) > _MAX_WAITING:
                _give_up(self._wanted.popleft())
            self._changed.notify_all()
        return case

    def wait(self, case: EvidenceCase) -> None:
        """It comes next, whatever else was asked for."""
        with self._changed, suppress(ValueError):
            self._wanted.remove(case)
            self._wanted.appendleft(case)
        case.done.wait(_WAIT_SECONDS)

    def keep_again(self, case: EvidenceCase) -> None:
        """Something in its folder has changed since it was brought off the pod."""
        with self._changed:
            if self._off_pod is not None and len(self._changed_since) < _MAX_WAITING:
                self._changed_since[case.id] = case
                self._changed.notify_all()

    def signs(self) -> list[Observed]:
        """What the evidence that has come says of who stands where in the attempt that runs."""
        with self._changed:
            heard = list(self._heard)
            self._heard.clear()
        running = self._running()
        return [each.observed for each in heard if each.attempt == running]

    def close(self) -> None:
        """A bundle that is being written gets its time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(_WAIT_SECONDS)

    def _work(self) -> None:
        while (case := self._next()) is not None:
            try:
                if case.saved.is_set():
                    self._keep(case)
                else:
                    self._collect(case)
            except Exception as error:
                self.errors.append(error)
            finally:
                _give_up(case)

    def _next(self) -> EvidenceCase | None:
        """None: there is nothing left to be done. What was asked for goes before what changed."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._changed_since or self._is_closing)
            if self._wanted:
                return self._wanted.popleft()
            return self._changed_since.pop(next(iter(self._changed_since), ""), None)

    def _keep(self, case: EvidenceCase) -> None:
        """Also to hear how a copy went that took longer than the bundle may."""
        if self._off_pod is None or case.bundle is None:
            return
        stored = self._off_pod.keep(case.folder, case.id, _KEEP_SECONDS)
        case.bundle = case.bundle._replace(stored=stored)
        self._ask_later(case)

    def _ask_later(self, case: EvidenceCase) -> None:
        stored = None if case.bundle is None else case.bundle.stored
        is_copying = stored is not None and stored.folder is not None and stored.why != ""
        if is_copying and case.asks < _MOST_ASKS:
            case.asks += 1
            self.keep_again(case)

    def _collect(self, case: EvidenceCase) -> None:
        def ask_wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
            if self._running() != case.attempt:
                return {"ok": False, "error": f"attempt {case.attempt} is over"}
            return ask(self._volume, request, seconds)

        case.bundle = collect(
            self._volume, case.folder, case.id, ask=ask_wrapper, reason=case.reason,
            extra=self._extra, keep=None if self._off_pod is None else self._off_pod.keep,
        )  # fmt: skip
        case.saved.set()
        self._ask_later(case)
        from mwatch.evidence.flight_files import signs_of  # much code, and seldom needed

        for sign in signs_of(Path(self._volume), case.id, self._world_size()):
            observed = Observed(self._now(), self._stream, sign)
            with self._changed:
                self._heard.append(_Heard(case.attempt, observed))


def _give_up(case: EvidenceCase) -> None:
    """Nothing more comes of it."""
    case.saved.set()
    case.done.set()
