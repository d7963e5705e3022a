# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A restart in place that somebody asks for, and what comes of it.

It names the attempt that is to end: whoever asks twice, or late, cannot end the one after it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RestartOrder(NamedTuple):
    attempt: int  # The one that runs now, and is to end
    resume_from: int | None  # None: as the rule for the next attempt has it
    reason: str
    who: str
    wants_evidence: bool = True  # False: whoever asks has saved it already
    grace_seconds: float = 10.0  # From the request to end to the kill
    with_save: bool = False  # The ranks are asked for a last save


class RestartOutcome(StrEnum):
    ACCEPTED = "accepted"
    ALREADY = "already"  # It was asked for before; it happens once
    WRONG_ATTEMPT = "wrong-attempt"
    NOT_RUNNING = "not-running"
    OBSERVING = "observing"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


class RestartAnswer(NamedTuple):
    outcome: RestartOutcome
    text: str = ""
    attempt: int | None = None  # The one that runs, where that is known
    evidence: str | None = None  # The id of what was saved before
