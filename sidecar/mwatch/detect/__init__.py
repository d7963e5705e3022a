# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The detectors: each module turns the state of a job into findings. `ALL` lists them.

Each module defines a `DETECTOR`; code that several detectors use is in `shared`.
"""

from __future__ import annotations

from mwatch.detect import (
    blind,
    checkpoint_incomplete,
    checkpoint_overdue,
    crash_loop,
    crashed,
    fabric_fault,
    finished_early,
    gpu_fault,
    grad_norm_bad,
    loss_missing,
    loss_scale_collapse,
    loss_spike,
    loss_stuck,
    no_progress,
    rank_silent,
    resume_diverged,
    skip_rate,
    slow,
    stalled,
    started_from_random,
    straggler,
)
from mwatch.detect.shared.probe import one_evaluation
from mwatch.model.finding import Detector, Finding
from mwatch.model.job import Job
from mwatch.model.settings import Settings

ALL: tuple[Detector, ...] = tuple(
    module.DETECTOR
    for module in (
        stalled, rank_silent, gpu_fault, fabric_fault, crashed, finished_early, crash_loop,
        no_progress, started_from_random, resume_diverged, checkpoint_incomplete,
        checkpoint_overdue, loss_missing, grad_norm_bad, loss_scale_collapse, skip_rate,
        loss_spike, loss_stuck, slow, straggler, blind,
    )
)  # fmt: skip


def run(job: Job, settings: Settings) -> list[Finding]:
    seen = {view for view, state in job.sources.items() if state.is_up}
    findings: list[Finding] = []
    with one_evaluation():
        for detector in ALL:
            if not detector.needs or not seen.isdisjoint(detector.needs):
                findings += detector.detect(job, settings)
    return findings
