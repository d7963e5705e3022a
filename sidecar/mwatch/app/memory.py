# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a job knows of its earlier life: `timeline.json` and `calibration.json` of its save folder.

Read once, when it is known where the job saves. The timeline is written by the wrapper; what was
learnt about durations is written here, and only when mwatch acts: observing touches nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from mwatch.app import timeline
from mwatch.model.calibration import Calibration
from mwatch.model.job import Job
from mwatch.model.timeline import Rollback
from mwatch.state import calibration_json
from mwatch_trainer import contract
from mwatch_trainer.timeline import FOLDER

_CALIBRATION = "calibration.json"


class Memory:
    def __init__(self, save: Path) -> None:
        self._save = save
        self.problems: list[str] = []

    def recall(self, job: Job) -> list[Rollback]:
        """`job` learns what its earlier attempts left; returns the rollbacks among it."""
        found = timeline.find(str(self._save))
        if found.problem:
            self.problems.append(found.problem)
        if found.timeline is not None:
            known = found.timeline
            for rollback in known.rollbacks:
                job.timeline.roll_back(rollback)
            job.timeline.attempt = max(job.timeline.attempt, known.attempt)
            if job.timeline.quarantine is None:
                job.timeline.quarantine = known.quarantine
        document = contract.read_json(str(self._path))
        if document is not None:
            _learn(job, calibration_json.from_json(document))
        return list(found.timeline.rollbacks) if found.timeline is not None else []

    def keep(self, job: Job) -> None:
        """Where that fails nothing is lost but a few minutes of learning."""
        try:
            os.makedirs(self._path.parent, exist_ok=True)
            document = calibration_json.to_json(job.calibration)
            json.dumps(document, allow_nan=False)
            contract.write_json(str(self._path), document)
        except (OSError, ValueError) as error:
            self.problems.append(f"what was learnt could not be kept: {error}")

    @property
    def _path(self) -> Path:
        return self._save / FOLDER / _CALIBRATION


def _learn(job: Job, learnt: Calibration) -> None:
    """What this attempt has seen itself goes before what is remembered."""
    if not job.calibration.key:
        job.calibration = learnt
        return
    shapes = {**learnt.others, learnt.key: learnt}
    for key, each in shapes.items():
        if key and key != job.calibration.key:
            each.others = {}
            job.calibration.others.setdefault(key, each)
