# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is going to happen to a job, and when. How it plays out is in `strikes` and `ailments`."""

from __future__ import annotations

from dataclasses import dataclass

from mwatch.model.phase import JobPhase


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    """A key of `truth.KINDS`."""
    phase: JobPhase = JobPhase.TRAINING
    iteration: int = 0
    """Not before this iteration is being worked on."""
    share: float = 0.5
    """How far into the phase, or the step."""
    rank: int = 0
    attempt: int | None = 1
    """Of which attempt, counted from 1; None: of every one."""
    seconds: float | None = None
    """It heals after so long; None: never."""
    variant: str = ""
    size: float = 1.0
    """How much: a factor of slowness, the height of a spike."""
    part: int = 0
    """Which part of the start-up."""


class Died(Exception):
    """The attempt is over: its processes have ended, or nobody will ever hear of them again."""
