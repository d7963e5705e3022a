# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The interface through which a watched run is shown: a terminal, plain lines, or nothing.

A view may fail at any time: the terminal is closed, the reader of a pipe exits. That ends the view
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
    """There was no problem at the end."""
    is_interrupted: bool = False
    """The user or the system ended it."""


class RunObserver(Protocol):
    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        """An attempt has started; `resume_from` if mwatch chose it."""

    def looked(self, job: Job, assessment: Assessment) -> None:
        """An evaluation ended, about twice a second."""

    def found(self, incident: Incident) -> None:
        """There is a new incident."""

    def closed(self, incident: Incident) -> None:
        """An incident ended without an action."""

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        """`is_real`: it was carried out; else mwatch only observes."""

    def noted(self, text: str) -> None:
        """There is a message for the user."""

    def printed(self, data: bytes) -> None:
        """The trainer printed this, if mwatch shows its output."""

    def ended(self, ended: RunEnd) -> None: ...


_MOST_FAILURES = 8


class SafeObserver:
    """Wraps a view so that its failures are ignored."""

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
        """Always shown: a terminal must be restored."""
        self._failures = 0
        self._show(lambda view: view.ended(ended))

    def _show(self, show: Callable[[RunObserver], None]) -> None:
        if self._failures >= _MOST_FAILURES:
            return
        try:
            show(self._view)
        except OSError:
            self._failures = _MOST_FAILURES  # the reader is gone
        except Exception:
            self._failures += 1  # it could not be drawn
