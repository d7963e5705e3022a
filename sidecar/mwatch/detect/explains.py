# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One event that is told several times: by a traceback, by its last line, by a launcher."""

from __future__ import annotations

from mwatch.detect.exit_causes import place_of_exit
from mwatch.model.job import ErrorSeen, FaultSeen

_SAME_TEXT = 40
REPORTS = ("elastic", "launcher")
"""Kinds of errors by which a launcher tells of an end, the more telling first."""


def explains(fault: FaultSeen, seen: ErrorSeen) -> bool:
    """Of whichever rank: all ranks may raise the same."""
    error = seen.error
    text = fault.fault.text
    if error.message and error.message[:_SAME_TEXT] in text:
        return True
    return not error.message and bool(error.error) and str(error.error) in text


def place_of_report(seen: ErrorSeen) -> tuple[int, int, float]:
    error = seen.error
    return REPORTS.index(error.kind), place_of_exit(error.exit_code, error.signal), seen.at
