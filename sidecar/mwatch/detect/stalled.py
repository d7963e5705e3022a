# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Nothing was finished for longer than the phase allows: a hang, in any phase.

The fabric is never blamed here: that all ranks are equal is a reason to look at it, not a proof.
"""

from __future__ import annotations

from mwatch.detect.shared import evidence
from mwatch.detect.shared.culprit import BlameResult, find_culprit
from mwatch.detect.shared.progress import next_iteration
from mwatch.detect.shared.stall import Stall, stall
from mwatch.model.finding import (
    MAX_EVIDENCE,
    Cause,
    Culprit,
    CulpritState,
    Detector,
    Finding,
    Severity,
)
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings

_PER_WITNESS = 0.15
_LEAST, _MOST = 0.1, 0.99

_STATE_TEXTS = {
    CulpritState.NEVER_JOINED: "never joined",
    CulpritState.STUCK: "joined and is stuck",
    CulpritState.SILENT: "has stopped or is silent",
    CulpritState.BEHIND: "is behind the others",
    CulpritState.OUT_OF_STEP: "is out of step",
}


def detect(job: Job, settings: Settings) -> list[Finding]:
    found = stall(job, settings)
    if found is None or found.is_unobserved:
        return []
    named = find_culprit(job, found, settings)
    confidence = found.confidence + _PER_WITNESS * (named.agree - named.disagree)
    last = [evidence.of_step(job.attempt.steps[-1])] if job.attempt.steps else []
    return [
        Finding(
            detector="stalled",
            cause=Cause.HANG,
            severity=Severity.CRITICAL,
            summary=_summary(job, found, named),
            since_time=found.since,
            since_iteration=next_iteration(job.attempt),
            confidence=round(min(max(confidence, _LEAST), _MOST), 2),
            culprit=named.culprit,
            evidence=(*last, *named.evidence)[:MAX_EVIDENCE],
            cannot_heal=named.cannot_heal,
            fault=None if found.given_up is None else found.given_up.fault.id,
            fingerprint=f"hang/{job.attempt.phase.value}",
        )
    ]


def _summary(job: Job, found: Stall, named: BlameResult) -> str:
    silent = job.now - found.since
    text = f"no progress for {silent:.0f} s in phase {job.attempt.phase.value}"
    if found.given_up is not None:
        text += ", and a watchdog of the trainer has given up"
    else:
        text += f" (allowed: {found.limit:.0f} s)"
    if named.culprit is not None:
        text += f"; {_culprit_text(named.culprit)}"
    return f"{text}; {found.note}" if found.note else text


def _culprit_text(culprit: Culprit) -> str:
    if culprit.state is None or culprit.state is CulpritState.ALL_EQUAL:
        return "all ranks are equal: look at the fabric or the storage"
    name = culprit.pod if culprit.rank is None else f"rank {culprit.rank}"
    return f"{name or 'a process'} {_STATE_TEXTS[culprit.state]}"


DETECTOR = Detector(
    "stalled", frozenset({Source.LOG, Source.PROBE}), detect, runbook="collective-timeout"
)
