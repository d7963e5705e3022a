# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the wrapper is told before it starts the command once more: `decision.json`.

The first start of a run needs none: the wrapper counts on from what lies beside the checkpoints,
and leaves the arguments as they are. Rollbacks travel with the decision, for the wrapper is the
one that writes beside the checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

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
    def __init__(self, volume: Path, job: Job) -> None:
        self._volume = volume
        self._job = job
        self._told: set[Rollback] = set()

    def known(self, rollbacks: list[Rollback]) -> None:
        """These lie beside the checkpoints already."""
        self._told.update(rollbacks)

    def choose(self, decision: Decision | None) -> Chosen:
        """InputError where it cannot be written: then nothing must be started."""
        if decision is None:
            return Chosen(1, None, "")
        number = max(self._job.attempt.number, self._job.timeline.attempt) + 1
        path = self._volume / contract.DECISION
        try:
            contract.write_json(str(path), self._document(number, decision))
        except OSError as error:
            problem = error.strerror or error
            raise InputError(f"{path}: cannot be written ({problem}); free some space") from error
        return Chosen(number, decision.resume_from, decision.resume_reason or decision.reason)

    def _document(self, number: int, decision: Decision) -> dict[str, Any]:
        timeline = self._job.timeline
        new = [each for each in timeline.rollbacks if each not in self._told]
        self._told.update(new)
        is_forbidden = decision.quarantine_from is not None
        return {
            "attempt": number,
            "resume_from": decision.resume_from,
            "from_beginning": decision.resume_from is None and is_forbidden,
            "not_before": None,
            "reason": decision.resume_reason or decision.reason,
            "rollbacks": [each._asdict() for each in new],
            "quarantine": None if timeline.quarantine is None else timeline.quarantine._asdict(),
        }
