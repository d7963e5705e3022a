# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the wrapper is told before it starts the command once more: `decision.json`.

The first start of a run needs none: the wrapper counts on from what lies beside the checkpoints,
and leaves the arguments as they are. Rollbacks travel with the decision, for the wrapper is the
one that writes beside the checkpoints; it knows one that it has been told before.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.app.clock import Clock
from mwatch.errors import InputError
from mwatch.model.decision import Decision
from mwatch.model.job import Job
from mwatch.model.timeline import Rollback
from mwatch_trainer import contract


class Chosen(NamedTuple):
    number: int
    resume_from: int | None
    reason: str


class NextAttempt:
    def __init__(self, volume: Path, job: Job, clock: Clock) -> None:
        self._volume = volume
        self._job = job
        self._clock = clock
        self._known: set[Rollback] = set()
        self._times: dict[Rollback, float] = {}

    def known(self, rollbacks: list[Rollback]) -> None:
        """These lie beside the checkpoints already."""
        self._known.update(rollbacks)

    def choose(self, decision: Decision) -> Chosen:
        """InputError where it cannot be written: then nothing must be started."""
        number = max(self._job.attempt.number, self._job.timeline.attempt) + 1
        path = self._volume / contract.DECISION
        try:
            contract.write_json(str(path), self._document(number, decision))
        except OSError as error:
            problem = error.strerror or error
            raise InputError(f"{path}: cannot be written ({problem}); free some space") from error
        self._forget_last()
        return Chosen(number, decision.resume_from, decision.resume_reason or decision.reason)

    def _document(self, number: int, decision: Decision) -> dict[str, Any]:
        timeline = self._job.timeline
        new = [each for each in timeline.rollbacks if each not in self._known]
        is_forbidden = decision.quarantine_from is not None
        return {
            "attempt": number,
            "resume_from": decision.resume_from,
            "from_beginning": decision.resume_from is None and is_forbidden,
            "not_before": None,
            "reason": decision.resume_reason or decision.reason,
            "rollbacks": [{**each._asdict(), "at": self._wall(each)} for each in new],
            "quarantine": None if timeline.quarantine is None else timeline.quarantine._asdict(),
        }

    def _wall(self, rollback: Rollback) -> float:
        """By the clock that checkpoints are dated with, if that was set forward since we began:
        what is condemned must not look newer than the sentence. Once told it stays."""
        ahead = max(0.0, self._clock.drift())
        return self._times.setdefault(rollback, rollback.at + (ahead if ahead > 1.0 else 0.0))

    def _forget_last(self) -> None:
        """What the last attempt's processes were doing says nothing of the next one's."""
        for name in (contract.NODE_PROCESSES, contract.NODE_GPUS):
            with suppress(OSError):
                os.unlink(self._volume / contract.NODE_FOLDER / name)
