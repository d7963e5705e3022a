# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which fault is the last line of which traceback: the same event, told twice."""

from __future__ import annotations

from mwatch.model.job import ErrorSeen, FaultSeen

_SAME_TEXT = 40


def explains(fault: FaultSeen, seen: ErrorSeen) -> bool:
    """Of whichever rank: all ranks may raise the same."""
    error = seen.error
    text = fault.fault.text
    if error.message and error.message[:_SAME_TEXT] in text:
        return True
    return not error.message and bool(error.error) and str(error.error) in text
