# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Loads and saves what a job has learnt: `timeline.json` and `calibration.json` of its save folder.

Both are read once, when it is known where the job saves. The wrapper writes the timeline; the
calibration is written here, and only if mwatch acts. Files are read and written in threads: storage
that hangs is often why a job hangs, and must not block the watcher.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.model.calibration import Calibration
from mwatch.model.job import Job
from mwatch.model.reading import Failed, Ok, Reading
from mwatch.model.timeline import Rollback
from mwatch.sources import checkpoint_dir
from mwatch.sources.background import BackgroundCall
from mwatch.state import calibration as calibration_json
from mwatch_trainer import contract
from mwatch_trainer.checkpoint.timeline import FOLDER

_CALIBRATION = "calibration.json"
_LIMIT_SECONDS = 30.0
_KEEP_SECONDS = 5.0


class _Found(NamedTuple):
    timeline: checkpoint_dir.SavedTimeline
    calibration: Mapping[str, Any] | None


class SavedState:
    def __init__(self, save: Path) -> None:
        self._save = save
        self._path = save / FOLDER / _CALIBRATION
        self._call: BackgroundCall[_Found] = BackgroundCall(
            "mwatch-memory", self._read, limit_seconds=_LIMIT_SECONDS
        )
        self._call.start()
        self._keeping: threading.Thread | None = None
        self._problems: list[str] = []

    def wait(self, seconds: float) -> None:
        """Wait until the files are read, before a decision that depends on them."""
        self._call.wait(seconds)

    def recall(self, job: Job) -> list[Rollback] | None:
        """Load what earlier attempts saved into `job` and return their rollbacks; None if it is not
        read yet, or was loaded before."""
        match self._call.take():
            case Ok(found):
                return self._learn(job, found)
            case Failed(error):
                self._problem(f"{self._save}: cannot read what earlier attempts saved: {error}")
        return None

    def keep(self, job: Job) -> None:
        """Save the calibration; a failure costs only some minutes of learning."""
        if self._keeping is not None and self._keeping.is_alive():
            return
        document = calibration_json.to_json(job.calibration)
        self._keeping = threading.Thread(
            target=self._write, args=(document,), name="mwatch-keep", daemon=True
        )
        self._keeping.start()
        self._keeping.join(_KEEP_SECONDS)
        if self._keeping.is_alive():
            self._problem(f"cannot save the calibration: {self._save} does not answer")

    def problems(self) -> list[str]:
        return list(self._problems)

    def _read(self) -> Reading[_Found]:
        return Ok(_Found(checkpoint_dir.find(str(self._save)), contract.read_json(str(self._path))))

    def _learn(self, job: Job, found: _Found) -> list[Rollback]:
        if found.timeline.problem:
            self._problem(found.timeline.problem)
        if found.calibration is not None:
            _learn(job, calibration_json.from_json(found.calibration))
        known = found.timeline.timeline
        if known is None:
            return []
        for rollback in known.rollbacks:
            job.timeline.roll_back(rollback)
        job.timeline.attempt = max(job.timeline.attempt, known.attempt)
        if job.timeline.quarantine is None:
            job.timeline.quarantine = known.quarantine
        return list(known.rollbacks)

    def _write(self, document: Mapping[str, Any]) -> None:
        try:
            json.dumps(document, allow_nan=False)
            os.makedirs(self._path.parent, exist_ok=True)
            contract.write_json(str(self._path), document)
        except (OSError, ValueError) as error:
            self._problem(f"cannot save the calibration: {error}")

    def _problem(self, text: str) -> None:
        kind = text.rpartition(":")[0]
        if not any(each.startswith(kind) for each in self._problems):
            self._problems.append(text)


def _learn(job: Job, learnt: Calibration) -> None:
    """What this attempt has learnt itself takes precedence."""
    if not learnt.key:
        return  # it is empty
    if not job.calibration.key:
        job.calibration = learnt
        return
    shapes = {**learnt.others, learnt.key: learnt}
    for key, each in shapes.items():
        if key and key != job.calibration.key:
            each.others = {}
            job.calibration.others.setdefault(key, each)
