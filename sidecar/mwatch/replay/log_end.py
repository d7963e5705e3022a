# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How a recorded log ends where it shows no exit.

People save and paste excerpts: the fault is the last thing in them. A root fault or an exception is
the cause of the end if no progress follows it, and if it is near the end of its file, since
progress may be printed in a form that mwatch does not know. Errors of other ranks, the teardown and
the launcher's report may follow it. This is for recorded logs only: in a live job printed text does
not prove an end.
"""

from __future__ import annotations

from collections.abc import Mapping

from mwatch.detect.crashed import at_log_end
from mwatch.engine.engine import Assessment, Engine
from mwatch.model.event import Arguments, Checkpoint, Event, Iteration, Phase, Validation
from mwatch.model.finding import Cause, Finding
from mwatch.model.observation import Observation

LAST_LINES = 200
"""How far from the end of its file the last error may be."""


class LogEnd:
    def __init__(self) -> None:
        self._progress: dict[str, int] = {}

    def note(self, what: Event | Observation) -> None:
        """Other ranks may still print that they start while one of them fails."""
        if isinstance(what, Phase) and what.name == "starting":
            return
        if isinstance(what, Checkpoint) and what.edge != "end":
            return
        if isinstance(what, Iteration | Validation | Arguments | Phase | Checkpoint):
            self._progress[what.file] = what.line

    def fault(
        self, engine: Engine, assessment: Assessment, line_counts: Mapping[str, int]
    ) -> Finding | None:
        """Find what ended the log; None: nothing, or `assessment` says more. `line_counts`: lines
        by file."""
        attempt = engine.job.attempt
        has_ended = attempt.ended_at is not None and not attempt.is_finished
        if attempt.exit is not None or has_ended:
            return None
        places = [(each.fault.file, each.fault.line) for each in attempt.faults]
        raised = (*attempt.errors, *attempt.exceptions)
        places += [(each.error.file, each.error.line) for each in raised]
        if not any(line_counts.get(file, 0) - line <= LAST_LINES for file, line in places):
            return None
        found = at_log_end(engine.job, self._progress, engine.settings)
        is_hang = found is not None and found.cause is Cause.HANG is assessment.decision.cause
        return None if is_hang else found
