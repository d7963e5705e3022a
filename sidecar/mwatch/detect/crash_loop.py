# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Several attempts in a row fail with the same root cause within a short time.

Without progress between the attempts, another restart does not help. Two attempts are enough if
the program raised the exception at the same place both times. A hang prints nothing, so only
`no_progress` counts attempts that hang.
"""

from __future__ import annotations

from mwatch.detect.shared.attempts import Death, EndedAttempt, death, failures, is_over
from mwatch.model.cause import Cause
from mwatch.model.finding import MAX_EVIDENCE, Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings


def detect(job: Job, settings: Settings) -> list[Finding]:
    if not job.past and not is_over(job.attempt):
        return []
    same = _same(failures(job), settings)
    if len(same) < settings.act.max_same_fingerprint and not _is_at_one_place(same):
        return []
    first, died = same[0]
    has_progressed = any(ended.has_progressed for ended, _ in same[1:])
    is_hopeless = is_over(job.attempt) and not has_progressed
    text = f"{len(same)} attempts in a row failed with the same cause: {died.key}"
    return [
        Finding(
            detector="crash_loop",
            cause=Cause.CRASH,
            severity=Severity.CRITICAL if is_hopeless else Severity.WARNING,
            summary=text + ("; each got further than the last" if has_progressed else ""),
            since_time=first.attempt.ended_at or first.attempt.started_at,
            since_iteration=first.attempt.iteration,
            confidence=0.9,
            evidence=tuple(each.evidence for _, each in same[-MAX_EVIDENCE:]),
            fault=died.fault,
            fingerprint=f"crash-loop/{died.key}",
        )
    ]


def _is_at_one_place(same: list[tuple[EndedAttempt, Death]]) -> bool:
    places = [died.place for _, died in same[-2:]]
    return len(places) == 2 and places[0] is not None and places[0] == places[1]


def _same(ended: list[EndedAttempt], settings: Settings) -> list[tuple[EndedAttempt, Death]]:
    found: list[tuple[EndedAttempt, Death]] = []
    for each in reversed(ended):
        died = death(each.attempt)
        if died is None or (found and died.key != found[0][1].key):
            break
        if found and _end(found[0][0]) - _end(each) > settings.act.window_seconds:
            break
        found.append((each, died))
    return found[::-1]


def _end(ended: EndedAttempt) -> float:
    return ended.attempt.ended_at or ended.attempt.progress_at


DETECTOR = Detector(
    "crash_loop",
    frozenset({Source.LOG, Source.PROBE, Source.PROCESS}),
    detect,
    runbook="process-crash",
)
