# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What an API server answered, where the answer is a fact to go on with and no failure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple


class CallOutcome(StrEnum):
    OK = "ok"
    MISSING = "missing"
    """404: no such object, or no such kind."""
    CONFLICT = "conflict"
    """409: it is there already, or has changed, or is another object of the same name."""
    EXPIRED = "expired"
    """410: the version that was asked from is no longer known; list again."""


class Answer(NamedTuple):
    outcome: CallOutcome
    body: Mapping[str, Any]
    text: str = ""
    """Of the API server, where it is not OK."""

    @property
    def is_ok(self) -> bool:
        return self.outcome is CallOutcome.OK


OF_STATUS = {404: CallOutcome.MISSING, 409: CallOutcome.CONFLICT, 410: CallOutcome.EXPIRED}
