# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Find the fault that ended a recorded log that shows no exit.

Users save and paste excerpts in which the fault comes last. A root fault or an exception is the
cause of the end if no progress follows it and it is near the end of its file; the second condition
exists because progress may be printed in a format that mwatch does not know. Errors of other ranks,
the teardown and the launcher's report may follow it. This applies to recorded logs only: in a live
job, printed text does not prove an end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from mwatch.detect.crashed import at_log_end
from mwatch.engine.engine import Assessment, Engine
from mwatch.model.cause import Cause
from mwatch.model.event import Arguments, Checkpoint, Event, Iteration, Phase, Validation
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Attempt, ErrorSeen
from mwatch.model.observation import Observation
from mwatch.parse.lines.line import ANSI
from mwatch.replay.unread_progress import counted_until

LAST_LINES = 200
"""Maximum distance of the last error from the end of its file, in lines."""
_HELPER = re.compile(r"\bException in thread |\bProcess \w*(?:PoolWorker|Feeder|Process)-[\d:]+$")
_CHAINED = re.compile(r"During handling of the above|was the direct cause of")
_PEER_GONE = re.compile(
    r"(?:^|\.)(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError"
    r"|CancelledError)$"
)


@lru_cache(maxsize=8)
def last_lines(tail: bytes, count: int) -> tuple[tuple[int, str], ...]:
    """Return the last lines of a file of `count` lines, with their line numbers."""
    text = ANSI.sub(b"", tail).decode("utf-8", "replace")
    lines = text.removesuffix("\n").split("\n")[-LAST_LINES:]
    return tuple(enumerate(lines, count - len(lines) + 1))


class LogEnd:
    def __init__(self) -> None:
        self.has_worked = False
        """A step count rose in the last lines, in a format that no recogniser reads."""
        self._progress: dict[str, int] = {}
        self._last_step: dict[str, int] = {}

    def note(self, what: Event | Observation) -> None:
        """Record progress; start-up lines do not count, as another rank may have failed before."""
        if isinstance(what, Phase) and what.name == "starting":
            return
        if isinstance(what, Checkpoint) and what.edge != "end":
            return
        if isinstance(what, Iteration):
            is_again = self._last_step.get(what.file) == what.iteration
            self._last_step[what.file] = what.iteration
            if is_again:
                return  # a progress bar is drawn once more when its program exits
        if isinstance(what, Iteration | Validation | Arguments | Phase | Checkpoint):
            self._progress[what.file] = what.line

    def forget_harmless(
        self, attempt: Attempt, line_counts: Mapping[str, int], tails: Mapping[str, bytes]
    ) -> None:
        """Drop exceptions that did not end the run.

        Those are exceptions after which a count keeps rising, so they were caught, and exceptions
        of helper processes that only lost their peer when the run ended.
        """
        for file, tail in tails.items():
            lines = last_lines(tail, line_counts.get(file, 0))
            counted = counted_until(lines)
            self.has_worked = self.has_worked or counted > 0
            self._progress[file] = max(counted, self._progress.get(file, 0))
            aside = _of_helpers(dict(lines), attempt.errors, file)
            attempt.errors[:] = [
                each
                for each in attempt.errors
                if each.error.kind != "traceback" or each.error.file != file
                or (each.error.line > counted and each.error.line not in aside)
            ]  # fmt: skip

    def is_followed(self, finding: Finding) -> bool:
        """Whether progress was printed after every line that is evidence of the finding."""
        shown = [(each.file, each.line) for each in finding.evidence if each.file and each.line]
        return bool(shown) and all(line < self._progress.get(file, 0) for file, line in shown)

    def fault(
        self, engine: Engine, assessment: Assessment, line_counts: Mapping[str, int]
    ) -> Finding | None:
        """Find the fault that ended the log; None if there is none or `assessment` covers it.

        `line_counts`: number of lines by file.
        """
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
        shown = assessment.decision.finding
        is_known = shown is not None and shown.severity is Severity.CRITICAL
        is_hang = found is not None and found.cause is Cause.HANG is assessment.decision.cause
        return None if is_hang and is_known else found


def has_counted(tails: Mapping[str, bytes], line_counts: Mapping[str, int]) -> bool:
    """Whether a step count rises in the last lines of any file."""
    ends = (last_lines(tail, line_counts.get(file, 0)) for file, tail in tails.items())
    return any(map(counted_until, ends))


def _of_helpers(lines: Mapping[int, str], errors: Sequence[ErrorSeen], file: str) -> set[int]:
    """Return the lines of tracebacks from helper threads or workers whose peer was gone."""
    found: set[int] = set()
    is_aside = False
    for error in sorted((e.error for e in errors if e.error.file == file), key=lambda e: e.line):
        above = range(error.line - 1, error.line - 4, -1)
        before = next((lines[n] for n in above if lines.get(n, "").strip()), "")
        goes_on = is_aside and _CHAINED.search(before) is not None
        is_aside = goes_on or _HELPER.search(before) is not None
        if is_aside and (not error.error or _PEER_GONE.search(error.error)):
            found |= {error.line, error.error_line or error.line}
    return found
