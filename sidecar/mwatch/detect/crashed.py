# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The attempt's processes died, or are about to.

Whether it died is judged in `last_words`, why in `root_cause`; here both become a finding that
names the rank and the place. An attempt that finished, or left as it was asked to, is none.
"""

from __future__ import annotations

import re

from mwatch.detect.afterwards import has_trained
from mwatch.detect.evidence import of_error, of_fault, of_gone
from mwatch.detect.explains import REPORTS
from mwatch.detect.last_words import (
    is_credible,
    is_proven,
    is_quiet,
    is_sure,
    left_in_order,
)
from mwatch.detect.root_cause import RootCause, root_cause
from mwatch.detect.who import absent_suspect, culprit
from mwatch.model.fault import Role
from mwatch.model.finding import MAX_EVIDENCE, Cause, Culprit, Detector, Evidence, Finding, Severity
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Sight
from mwatch.model.settings import Settings

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|/\S+|\d+")
_ITERATION = re.compile(r"iteration #?(\d{1,18})")
_WORDS = 8
_NUMERIC = (Cause.NAN, Cause.RERUN, Cause.HARDWARE)
"""Causes whose messages may name the iteration."""


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if is_quiet(attempt) or left_in_order(attempt):
        return []
    has_proof = is_proven(attempt)
    if not has_proof and not is_credible(job, settings):
        return []
    is_emergency = has_proof or is_sure(job, settings)
    root = root_cause(job)
    return [_finding(job, root, has_proof, is_emergency)] if root else []


def _finding(job: Job, root: RootCause, has_proof: bool, is_emergency: bool) -> Finding:
    return Finding(
        detector="crashed",
        cause=root.cause,
        severity=Severity.CRITICAL if is_emergency else Severity.WARNING,
        summary=f"The attempt died{_after(job.attempt)}: {_what(root)}.",
        since_time=root.at or job.attempt.ended_at,
        since_iteration=_since(job, root),
        confidence=root.confidence if has_proof else min(root.confidence, 0.7),
        culprit=_culprit(job, root),
        evidence=_evidence(job.attempt, root),
        cannot_heal=has_proof,
        fault=root.fault.fault.id if root.fault else None,
        fingerprint=_fingerprint(root),
    )


def _after(attempt: Attempt) -> str:
    if has_trained(attempt):
        return f" after iteration {attempt.iteration}"
    return " while loading" if attempt.load in ("begun", "failed") else " before its first step"


def _what(root: RootCause) -> str:
    if root.fault and root.fault.entry:
        return root.fault.entry.title
    error = root.error.error if root.error else None
    if error and error.error:
        return f"{error.error}: {error.message[:120]}".rstrip(": ")
    if error and (error.signal or error.exit_code is not None):
        return error.signal or f"exit code {error.exit_code}"
    if root.gone:
        end = root.gone.exit
        return end.reason or end.signal or f"exit code {end.exit_code}"
    return str(root.cause)


def _since(job: Job, root: RootCause) -> int | None:
    attempt = job.attempt
    done = attempt.iteration if attempt.iteration is not None else attempt.resumed_from
    if root.cause not in _NUMERIC:
        return None if done is None else done + 1
    named = _named(root)
    if named is None:
        return (done or 0) + 1
    saved = [  # what the guard saved on its way out is the last good one; releases count apart
        known.iteration
        for known in job.checkpoints.values()
        if known.attempt == attempt.number and (known.saved_at or 0.0) >= root.at
    ]
    limits = [number + 1 for number in saved]
    if done is not None:  # had more been finished, there would be a line
        limits.append(done + (job.layout.log_interval or named))
    return min([named, *limits])


def _named(root: RootCause) -> int | None:
    """The iteration that the guard's own words name; it prints -1 where it does not know."""
    said = root.fault.fault.text if root.fault else root.error.error.message if root.error else ""
    found = _ITERATION.search(said)
    return int(found[1]) if found else None


def _culprit(job: Job, root: RootCause) -> Culprit | None:
    if root.cause is Cause.HANG:  # the ranks that complain have waited for another one
        suspect = absent_suspect(job, job.attempt.last_progress)
        return culprit(job, suspect) if suspect else None
    fault = root.fault.fault if root.fault else None
    error = root.error.error if root.error else None
    rank = error.rank if error else None
    if fault is not None and fault.rank is not None and fault.role != Role.CASCADE:
        rank = fault.rank  # who complains of another is not to blame
    host = error.host if error and error.host != "localhost" else None
    node = (fault.node if fault else None) or host
    entry = root.fault.entry if root.fault else None
    gpu = fault.gpu if fault and fault.gpu and fault.gpu.startswith("GPU-") else None
    if rank is None and node is None and gpu is None:
        return None
    seen = root.fault or root.error or root.gone
    return Culprit(
        rank=rank,
        coordinates=job.layout.coordinates(rank),
        pod=seen.stream if seen else None,
        node=node,
        gpu_uuid=gpu,
        xid=entry.xid if entry else None,
    )


def _evidence(attempt: Attempt, root: RootCause) -> tuple[Evidence, ...]:
    found: list[Evidence] = []
    if root.fault:
        found.append(of_fault(root.fault))
    if root.error:
        found.append(of_error(root.error))
    found += [of_error(seen) for seen in attempt.errors if seen.error.kind in REPORTS][:2]
    found += [of_gone(gone) for gone in attempt.gone.values()][:2]
    return tuple(dict.fromkeys(found))[:MAX_EVIDENCE]


def _fingerprint(root: RootCause) -> str:
    """Equal for the same failure: without numbers, addresses and paths."""
    if root.fault:
        return f"{root.cause}/{root.fault.fault.id}"
    error = root.error.error if root.error else None
    if error and error.error:
        words = _NUMBERS.sub("#", error.message).split()[:_WORDS]
        return f"{root.cause}/{error.error}: {' '.join(words)}".rstrip(": ")
    if error and (error.signal or error.exit_code is not None):
        return f"{root.cause}/{error.signal or error.exit_code}"
    if root.gone:
        end = root.gone.exit
        return f"{root.cause}/{end.reason or end.signal or end.exit_code}"
    return str(root.cause)


DETECTOR = Detector(
    name="crashed",
    needs=frozenset({Sight.LOG, Sight.PROCESS}),
    detect=detect,
    runbook="process-crash",
)
