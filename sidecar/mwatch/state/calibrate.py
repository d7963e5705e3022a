# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Learns how long things take in this job, from what the fold sees end."""

from __future__ import annotations

from mwatch.model.job import Job, Step
from mwatch.model.phase import Slot


def phase_ended(job: Job, slot: Slot, seconds: float) -> None:
    """A phase of `job.attempt` has ended in the usual way."""


def step_reported(job: Job, step: Step) -> None:
    """The newest line of `job.attempt.steps`."""


def attempt_progressed(job: Job) -> None:
    """`job.attempt` has just passed what earlier attempts had reached."""
