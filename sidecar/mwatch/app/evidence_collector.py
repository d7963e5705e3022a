# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Saves the evidence of incidents while the watching goes on, and hears what it says.

A stall is asked about as soon as it is found: the stacks and the flight recorder name the rank
that the others wait for, and are the second witness that an action needs. One bundle for each
cause of an attempt; before a kill the newest is waited for, within its limit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

from mwatch.act.evidence import Bundle, collect
from mwatch.app.flight_signs import signs_of
from mwatch.model.observation import Observed
from mwatch_trainer.control_client import ask

_WAIT_SECONDS = 25.0
"""A little more than a bundle may take."""


class Case:
    """The evidence of one incident: asked for, and there once `done` is set."""

    def __init__(self, id: str, folder: Path) -> None:
        self.id = id
        self.folder = folder
        self.bundle: Bundle | None = None
        self.done = threading.Event()


class EvidenceCollector:
    def __init__(self, volume: Path, stream: str, now: Callable[[], float]) -> None:
        self._volume = str(volume)
        self._stream = stream
        self._now = now
        self._wanted: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
        self._heard: queue.SimpleQueue[Observed] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mwatch-cases", daemon=True)
        self._thread.start()

    def want(self, id: str, folder: Path) -> Case:
        case = Case(id, folder)
        self._wanted.put(case)
        return case

    def wait(self, case: Case) -> None:
        case.done.wait(_WAIT_SECONDS)

    def signs(self) -> list[Observed]:
        """What the evidence that has come says of who stands where."""
        heard = []
        while not self._heard.empty():
            heard.append(self._heard.get())
        return heard

    def close(self) -> None:
        """A bundle that is being written gets its time."""
        self._wanted.put(None)
        self._thread.join(_WAIT_SECONDS)

    def _work(self) -> None:
        while (case := self._wanted.get()) is not None:
            try:
                self._collect(case)
            finally:
                case.done.set()

    def _collect(self, case: Case) -> None:
        case.bundle = collect(
            self._volume,
            case.folder,
            case.id,
            ask=lambda request, seconds: ask(self._volume, request, seconds),
        )
        for sign in signs_of(Path(self._volume), case.id):
            self._heard.put(Observed(self._now(), self._stream, sign))
