# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The detectors: each module turns the state of a job into findings. `ALL` lists them.

Each has a `DETECTOR`; code that several of them use is in `shared`.
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

ALL: tuple[Detector, ...] = (
    stalled.DETECTOR,
    rank_silent.DETECTOR,
    gpu_fault.DETECTOR,
    fabric_fault.DETECTOR,
    crashed.DETECTOR,
    finished_early.DETECTOR,
    crash_loop.DETECTOR,
    no_progress.DETECTOR,
    started_from_random.DETECTOR,
    resume_diverged.DETECTOR,
    checkpoint_incomplete.DETECTOR,
    checkpoint_overdue.DETECTOR,
    loss_missing.DETECTOR,
    grad_norm_bad.DETECTOR,
    loss_scale_collapse.DETECTOR,
    skip_rate.DETECTOR,
    loss_spike.DETECTOR,
    loss_stuck.DETECTOR,
    slow.DETECTOR,
    straggler.DETECTOR,
    blind.DETECTOR,
)


def run(job: Job, settings: Settings) -> list[Finding]:
    """Run all detectors that have at least one of their sources."""
    seen = {view for view, state in job.sources.items() if state.is_up}
    findings: list[Finding] = []
    with one_evaluation():
        for detector in ALL:
            if not detector.needs or not seen.isdisjoint(detector.needs):
                findings += detector.detect(job, settings)
    return findings
