# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a person should do before starting a stopped job again."""

from __future__ import annotations

from mwatch.decide import resume
from mwatch.decide.policy import RULES, Resume
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding
from mwatch.model.job import Job
from mwatch.model.settings import Settings

_FIXES = {Cause.USER_ERROR: "fix the error", Cause.DATA: "fix the data, or leave the bad part out"}
_SMALLER = "use a smaller micro batch, recompute activations or split the model further"
_LEAK = "look for a leak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def after_stop(job: Job, finding: Finding, settings: Settings) -> str:
    is_load = finding.cause is Cause.CHECKPOINT
    before = finding.since_iteration
    choice = resume.before_failed(job) if is_load else resume.choose(job, before=before)
    place = "start again" if choice.iteration is None else f"resume from {choice.iteration}"
    goes_back = RULES[finding.cause].resume is Resume.BEFORE_BAD
    is_open = choice.nothing_complete or (goes_back and choice.nothing_known)
    place = "choose by hand what to resume from" if is_open else place
    if finding.cause is Cause.OOM:
        return f"{_memory(job, settings)}, then {place}"
    entry = job.catalogue.get(finding.fault or "")
    general = entry.fix.rstrip(".") if entry else "find the cause"
    fix = _FIXES.get(finding.cause) or (finding.comes_again and finding.next_step) or general
    return f"{fix}, then {place}"


def _memory(job: Job, settings: Settings) -> str:
    """Suggest a smaller configuration, or a leak if the run was long.

    If memory was enough for hundreds of iterations, the model itself fits.
    """
    attempt = job.attempt
    if attempt.iteration is None or attempt.first_iteration is None:
        return _SMALLER
    done = attempt.iteration - attempt.first_iteration + 1
    if done < settings.act.long_run_iterations:
        return _SMALLER
    return f"it ran {done} iterations before: {_LEAK}"
