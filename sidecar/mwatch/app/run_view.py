# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watched run tells whoever looks on: a terminal, plain lines, or nobody."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from mwatch.app.engine import Assessment, Incident
from mwatch.model.decision import Decision
from mwatch.model.job import Job


class Ended(NamedTuple):
    exit_code: int
    summary: str
    is_recovered: bool
    """Nothing was wrong at the end."""


class View(Protocol):
    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        """An attempt is started."""

    def looked(self, job: Job, assessment: Assessment) -> None:
        """Twice a second."""

    def found(self, incident: Incident) -> None:
        """Something is wrong that was not before."""

    def closed(self, incident: Incident) -> None:
        """It went away by itself."""

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        """`is_real`: it was done; else, it would have been."""

    def noted(self, text: str) -> None:
        """Something that a person should know."""

    def printed(self, data: bytes) -> None:
        """What the trainer prints, where it is ours to show."""

    def ended(self, ended: Ended) -> None: ...


class NoView:
    """Nobody looks on."""

    def began(self, number: int, resume_from: int | None, reason: str) -> None: ...
    def looked(self, job: Job, assessment: Assessment) -> None: ...
    def found(self, incident: Incident) -> None: ...
    def closed(self, incident: Incident) -> None: ...
    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None: ...
    def noted(self, text: str) -> None: ...
    def printed(self, data: bytes) -> None: ...
    def ended(self, ended: Ended) -> None: ...
