# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a line came after the last step: what training survived did not end it.

Lines of one file are ordered by their numbers, those of several files by their clocks alone.
"""

from __future__ import annotations

from mwatch.model.job import Attempt, Step


def is_after(last: Step | None, at: float, file: str, line: int) -> bool:
    """Whether something was printed after the newest iteration line."""
    if last is None:
        return True
    return line > last.line if file == last.file else at > last.at


def has_trained(attempt: Attempt) -> bool:
    """It has done a step of its own; the probe tells an iteration before that."""
    return bool(attempt.steps) or attempt.first_iteration is not None
