# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No progress was made for longer than the current phase allows: a hang.

The fabric is never blamed here: if all ranks are in the same state, that is a reason to check the
fabric, not a proof.
"""

from __future__ import annotations

from dataclasses import replace

from mwatch.detect.shared import evidence
from mwatch.detect.shared.culprit import find_culprit
from mwatch.detect.shared.place import Place, common_place, groups_since, place_of
from mwatch.detect.shared.progress import next_iteration
from mwatch.detect.shared.stall import Stall, aside_seconds, stall
from mwatch.model.cause import Cause
from mwatch.model.finding import (
    MAX_EVIDENCE,
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
    rank = None if named.culprit is None else named.culprit.rank
    groups = groups_since(job, found.since)
    place = place_of(job, rank, found.since) if rank is not None else common_place(groups)
    culprit = named.culprit
    if culprit is not None and place is not None:
        culprit = replace(culprit, place=place.line)
    confidence = found.confidence + _PER_WITNESS * (named.agree - named.disagree)
    last = [evidence.of_step(job.attempt.steps[-1])] if job.attempt.steps else []
    return [
        Finding(
            detector="stalled",
            cause=Cause.HANG,
            severity=Severity.CRITICAL,
            summary=_summary(job, found, culprit, place),
            since_time=found.since,
            since_iteration=next_iteration(job.attempt),
            confidence=round(min(max(confidence, _LEAST), _MOST), 2),
            culprit=culprit,
            evidence=(*last, *named.evidence)[:MAX_EVIDENCE],
            cannot_heal=named.cannot_heal,
            is_guess=found.is_guess,
            may_take_seconds=aside_seconds(job, settings),
            fault=None if found.given_up is None else found.given_up.fault.id,
            fingerprint=f"hang/{job.attempt.phase.value}",
            stacks=groups,
            next_step="" if place is None else place.next_step,
        )
    ]


def _summary(job: Job, found: Stall, culprit: Culprit | None, place: Place | None) -> str:
    silent = job.now - found.since
    text = f"no progress for {silent:.0f} s in phase {job.attempt.phase.value}"
    if found.given_up is not None:
        text += ", and a watchdog of the trainer has given up"
    else:
        text += f" (allowed: {found.limit:.0f} s)"
    if culprit is not None:
        text += f"; {_culprit_text(culprit, place)}"
    return f"{text}; {found.note}" if found.note else text


def _culprit_text(culprit: Culprit, place: Place | None) -> str:
    if culprit.state is None or culprit.state is CulpritState.ALL_EQUAL:
        return "all ranks are equal: look at the fabric or the storage" if not place else place.text
    name = (culprit.pod if culprit.rank is None else f"rank {culprit.rank}") or "a process"
    if place is None:
        return f"{name} {_STATE_TEXTS[culprit.state]}"
    if culprit.state is CulpritState.STUCK:
        return f"{name} {place.text}"
    if culprit.state is CulpritState.SILENT:
        # Its last phase and CPU time predate the silence; only a dump shows where it is now.
        return f"{name} {place.text if place.is_dumped else _STATE_TEXTS[culprit.state]}"
    return f"{name} {_STATE_TEXTS[culprit.state]}: it {place.text}"


DETECTOR = Detector(
    "stalled", frozenset({Source.LOG, Source.PROBE}), detect, runbook="collective-timeout"
)
