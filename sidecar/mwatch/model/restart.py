# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A request to restart in place, and its outcome.

The request names the attempt to end: a repeated or late request cannot end the next one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RestartOrder(NamedTuple):
    attempt: int  # the attempt to end
    resume_from: int | None  # None: by the usual rule for the next attempt
    reason: str
    who: str
    wants_evidence: bool = True  # False: the evidence is saved already
    grace_seconds: float = 10.0  # from the request to end until the kill
    with_save: bool = False  # ask the ranks for a last save


class RestartOutcome(StrEnum):
    ACCEPTED = "accepted"
    ALREADY = "already"  # requested before; it happens once
    WRONG_ATTEMPT = "wrong-attempt"
    NOT_RUNNING = "not-running"
    OBSERVING = "observing"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


class RestartAnswer(NamedTuple):
    outcome: RestartOutcome
    text: str = ""
    attempt: int | None = None  # the one that runs, if known
    evidence: str | None = None  # id of the evidence that was saved before
