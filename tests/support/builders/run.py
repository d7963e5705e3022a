# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a watched run for their tests: a clock that is told the time, an engine with a past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import Incident
from mwatch.model.decision import Decision
from mwatch.model.job import Job
from mwatch.model.observation import AttemptStart, Observation, Observed
from mwatch.model.settings import Settings
from mwatch.run.folder import RunFolder
from mwatch.runtime.clock import Clock
from mwatch.watch.watcher import RunEnd
from support.builders.events import events
from support.builders.fold import READY, WORLD, line, saved, saving
from support.builders.job import entries
from support.builders.volume import WALL

STREAM = "local"
PATIENCE = 50.0


class TestClock(Clock):
    """Stands still until it is told; `set_forward` is somebody at the clock of the machine."""

    __test__ = False

    def __init__(self, monotonic: float = 100.0) -> None:
        super().__init__()
        self.monotonic = monotonic
        self.set_forward = 0.0

    def now(self) -> float:
        return WALL + self.monotonic

    def drift(self) -> float:
        return self.set_forward


class Told:
    """An engine and its clock: what is told moves both by a second."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.engine = Engine("run", entries(), settings)
        self.clock = TestClock()
        self._text = ""
        self._told = 0

    def says(self, *lines: str) -> Assessment:
        for each in lines:
            self.clock.monotonic += 1
            self._text += f"{each}\n"
            found = events(self._text, faults=True)
            for event in found[self._told :]:
                self.engine.observe(Observed(self.clock.now(), STREAM, event))
            self._told = len(found)
        return self.engine.evaluate(self.clock.now())

    def sees(self, what: Observation) -> Assessment:
        self.clock.monotonic += 1
        self.engine.observe(Observed(self.clock.now(), STREAM, what))
        return self.engine.evaluate(self.clock.now())

    def waits(self, seconds: float) -> Assessment:
        self.clock.monotonic += seconds
        return self.engine.evaluate(self.clock.now())

    def enacts(self, decision: Decision) -> None:
        self.engine.record_action(decision, self.clock.now())


def gone_bad() -> Told:
    """NaN from 7 on, with checkpoints at 3, 6 and 8, in attempt 1."""
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD, READY, *good(1, 2, 3), saving(3), saved(3), *good(4, 5, 6))
    told.says(saving(6), saved(6), *bad(7, 8), saving(8), saved(8), *bad(9))
    return told


def good(*iterations: int) -> list[str]:
    return [line(each, losses=f" lm loss: {6 - each / 100:.6E} |") for each in iterations]


def bad(*iterations: int) -> list[str]:
    return [line(each, losses="", change={"grad norm": "nan"}) for each in iterations]


class Heard:
    """A view that only remembers what it was told, by the name of the call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def of(self, name: str) -> list[Any]:
        return [what for each, what in self.calls if each == name]

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        self.calls.append(("began", (number, resume_from, reason)))

    def looked(self, job: Job, assessment: Assessment) -> None:
        self.calls.append(("looked", assessment))

    def found(self, incident: Incident) -> None:
        self.calls.append(("found", incident))

    def closed(self, incident: Incident) -> None:
        self.calls.append(("closed", incident))

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        self.calls.append(("acted", decision))

    def noted(self, text: str) -> None:
        self.calls.append(("noted", text))

    def printed(self, data: bytes) -> None:
        self.calls.append(("printed", data))

    def ended(self, ended: RunEnd) -> None:
        self.calls.append(("ended", ended))


def run_folder(path: Path) -> RunFolder:
    folder = RunFolder(path / "runs" / "r")
    folder.volume.mkdir(parents=True)
    return folder
