# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Several attempts in a row fail without getting further than the ones before.

While the newest attempt is still running, it may succeed, so the finding is only a warning.
"""

from __future__ import annotations

from itertools import takewhile

from mwatch.detect.shared.attempts import death, failures, is_over, reached
from mwatch.model.cause import Cause
from mwatch.model.finding import MAX_EVIDENCE, Detector, Finding, Severity
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings


def detect(job: Job, settings: Settings) -> list[Finding]:
    if not job.past and not is_over(job.attempt):
        return []
    newest_first = reversed(failures(job))
    lost = [each.attempt for each in takewhile(lambda each: not each.has_progressed, newest_first)]
    if len(lost) < settings.act.max_without_progress:
        return []
    lost.reverse()
    first = lost[0]
    reported = [found.evidence for found in map(death, lost) if found is not None]
    done = reached(first)
    return [
        Finding(
            detector="no_progress",
            cause=Cause.CRASH,
            severity=Severity.CRITICAL if is_over(job.attempt) else Severity.WARNING,
            summary=_summary(job, lost),
            since_time=first.started_at,
            since_iteration=None if done is None else done + 1,
            confidence=0.9,
            evidence=tuple(reported[-MAX_EVIDENCE:]),
            fingerprint="no-progress",
        )
    ]


def _summary(job: Job, lost: list[Attempt]) -> str:
    best = "before any iteration" if job.best_iteration is None else f"at {job.best_iteration}"
    ends = {reached(attempt) for attempt in lost}
    text = f"{len(lost)} attempts in a row did not get further than the furthest, {best}"
    if len(ends) == 1 and (same := ends.pop()) is not None:
        text += f"; each ended after iteration {same}"
    return text


DETECTOR = Detector(
    "no_progress",
    frozenset({Source.LOG, Source.PROBE, Source.PROCESS}),
    detect,
    runbook="process-crash",
)
