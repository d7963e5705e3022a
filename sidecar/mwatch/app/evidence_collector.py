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

from mwatch.act.evidence import Bundle, collect
from mwatch.app.flight_signs import signs_of
from mwatch.model.observation import Observed
from mwatch_trainer.control_client import ask

_WAIT_SECONDS = 25.0
"""A little more than a bundle may take."""
_MAX_WAITING = 16
_MAX_HEARD = 1 << 16


class Case:
    """The evidence of one incident: asked for, and there once `done` is set."""

    def __init__(self, id: str, folder: Path, attempt: int) -> None:
        self.id = id
        self.folder = folder
        self.attempt = attempt
        self.bundle: Bundle | None = None
        self.done = threading.Event()


class _Heard(NamedTuple):
    attempt: int
    observed: Observed


class EvidenceCollector:
    def __init__(
        self, volume: Path, stream: str, now: Callable[[], float], running: Callable[[], int]
    ) -> None:
        """`running`: the number of the attempt that runs now."""
        self._volume = str(volume)
        self._stream = stream
        self._now = now
        self._running = running
        self._changed = threading.Condition()
        self._wanted: deque[Case] = deque()
        self._heard: deque[_Heard] = deque(maxlen=_MAX_HEARD)
        self._is_closing = False
        self.errors: deque[Exception] = deque(maxlen=_MAX_WAITING)
        """Faults of ours, for whoever tells them."""
        self._thread = threading.Thread(target=self._work, name="mwatch-cases", daemon=True)
        self._thread.start()

    def want(self, id: str, folder: Path, attempt: int) -> Case:
        case = Case(id, folder, attempt)
        with self._changed:
            self._wanted.append(case)
            if len(self._wanted) > _MAX_WAITING:
                self._wanted.popleft().done.set()
            self._changed.notify_all()
        return case

    def wait(self, case: Case) -> None:
        """It comes next, whatever else was asked for."""
        with self._changed, suppress(ValueError):
            self._wanted.remove(case)
            self._wanted.appendleft(case)
        case.done.wait(_WAIT_SECONDS)

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
                self._collect(case)
            except Exception as error:
                self.errors.append(error)
            finally:
                case.done.set()

    def _next(self) -> Case | None:
        """None: there is nothing left to be done."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._is_closing)
            return self._wanted.popleft() if self._wanted else None

    def _collect(self, case: Case) -> None:
        def ask_wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
            if self._running() != case.attempt:
                return {"ok": False, "error": f"attempt {case.attempt} is over"}
            return ask(self._volume, request, seconds)

        case.bundle = collect(self._volume, case.folder, case.id, ask=ask_wrapper)
        for sign in signs_of(Path(self._volume), case.id):
            observed = Observed(self._now(), self._stream, sign)
            with self._changed:
                self._heard.append(_Heard(case.attempt, observed))
