# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is the matter with a job, in the fields that `--json` shows as `verdict`."""

from __future__ import annotations

from dataclasses import dataclass

from mwatch.model.finding import Cause, Culprit


@dataclass(frozen=True, slots=True)
class Verdict:
    """None: not known."""

    cause: Cause
    summary: str
    since_iteration: int | None = None
    """The first iteration that the first bad line covers."""
    since_time: float | None = None
    culprit: Culprit | None = None
    confidence: float = 1.0
    """From 0 (nothing was seen) to 1."""
