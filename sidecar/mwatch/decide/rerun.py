# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exit 16: Megatron saved a checkpoint and asks to be resumed, to tell a bad GPU from bad code.

It asks again when it came back on the same GPU, so from the second time on another node is
wanted. Which GPU it got is not known here.
"""

from __future__ import annotations

from mwatch.decide import progress
from mwatch.model.decision import Record
from mwatch.model.finding import Cause
from mwatch.model.job import Job
from mwatch.model.settings import ActSettings


def in_a_row(job: Job, record: Record) -> int:
    """How often it has asked before now, at this place."""
    count = 0
    now = progress.reached(job, record)
    for act in reversed(progress.restarts(record)):
        has_moved = now is not None and act.iteration is not None and now > act.iteration
        if act.cause is not Cause.RERUN or has_moved:
            break
        count += 1
    return count


def refusal(job: Job, record: Record, settings: ActSettings) -> str | None:
    asked = in_a_row(job, record) + 1
    if asked <= settings.max_reruns:
        return None
    return f"Megatron asked {asked} times in a row to be resumed at the same place (exit 16)"
