# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a person may want to do about a job that was stopped. Words only: nobody acts on them."""

from __future__ import annotations

from mwatch.decide import resume
from mwatch.model.finding import Cause, Finding
from mwatch.model.job import Job
from mwatch.model.settings import Settings

_MENDS = {
    Cause.USER_ERROR: "mend the error",
    Cause.DATA: "mend the data, or leave the bad part out",
}
_SMALLER = "use a smaller micro batch, recompute activations or split the model further"
_LEAK = "look for a leak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def after_stop(job: Job, finding: Finding, settings: Settings) -> str:
    choice = resume.choose(job, before=finding.since_iteration)
    place = "start again" if choice.iteration is None else f"resume from {choice.iteration}"
    place = "choose by hand what to resume from" if choice.nothing_complete else place
    if finding.cause is Cause.OOM:
        return f"{_memory(job, settings)}, then {place}"
    entry = job.catalogue.get(finding.fault or "")
    mend = _MENDS.get(finding.cause) or (entry.mend.rstrip(".") if entry else "find the cause")
    return f"{mend}, then {place}"


def _memory(job: Job, settings: Settings) -> str:
    """Memory that was enough for hundreds of iterations is not too small for the model."""
    attempt = job.attempt
    if attempt.iteration is None or attempt.first_iteration is None:
        return _SMALLER
    done = attempt.iteration - attempt.first_iteration + 1
    if done < settings.act.long_run_iterations:
        return _SMALLER
    return f"it ran {done} iterations before: {_LEAK}"
