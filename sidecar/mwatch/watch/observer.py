# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watched run tells whoever looks on: a terminal, plain lines, or nobody.

Whoever looks on may leave: a terminal is closed, the reader of a pipe goes. That ends the view,
and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from mwatch.engine.engine import Assessment
from mwatch.engine.incidents import Incident
from mwatch.model.decision import Decision
from mwatch.model.job import Job


class RunEnd(NamedTuple):
    exit_code: int
    summary: str
    is_recovered: bool
    """Nothing was wrong at the end."""
    is_interrupted: bool = False
    """A person or the system ended it."""


class RunObserver(Protocol):
    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        """An attempt has begun; what it resumes from, where that was chosen for it."""

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

    def ended(self, ended: RunEnd) -> None: ...


class NoObserver:
    """Nobody looks on."""

    def began(self, number: int, resume_from: int | None, reason: str) -> None: ...
    def looked(self, job: Job, assessment: Assessment) -> None: ...
    def found(self, incident: Incident) -> None: ...
    def closed(self, incident: Incident) -> None: ...
    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None: ...
    def noted(self, text: str) -> None: ...
    def printed(self, data: bytes) -> None: ...
    def ended(self, ended: RunEnd) -> None: ...


_MOST_FAILURES = 8


class SafeObserver:
    """Another view that may fail without harm to anybody."""

    def __init__(self, view: RunObserver) -> None:
        self._view = view
        self._failures = 0

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        self._show(lambda view: view.began(number, resume_from, reason))

    def looked(self, job: Job, assessment: Assessment) -> None:
        self._show(lambda view: view.looked(job, assessment))

    def found(self, incident: Incident) -> None:
        self._show(lambda view: view.found(incident))

    def closed(self, incident: Incident) -> None:
        self._show(lambda view: view.closed(incident))

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        self._show(lambda view: view.acted(decision, is_real, evidence))

    def noted(self, text: str) -> None:
        self._show(lambda view: view.noted(text))

    def printed(self, data: bytes) -> None:
        self._show(lambda view: view.printed(data))

    def ended(self, ended: RunEnd) -> None:
        """In any case: a terminal wants its cursor back."""
        self._failures = 0
        self._show(lambda view: view.ended(ended))

    def _show(self, show: Callable[[RunObserver], None]) -> None:
        if self._failures >= _MOST_FAILURES:
            return
        try:
            show(self._view)
        except OSError:
            self._failures = _MOST_FAILURES  # nobody is there any more
        except Exception:
            self._failures += 1  # a picture that could not be drawn
