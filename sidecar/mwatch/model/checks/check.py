# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A check, of a manifest or of a running job, and what it found: what was seen, and the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from mwatch.model.checks.running import Running
from mwatch.model.checks.workload import Path, Workload


class CheckLevel(StrEnum):
    ERROR = "error"
    """The job will not start, or will not come back."""
    WARNING = "warning"
    INFO = "info"


class CheckHit(NamedTuple):
    """What a check yields; its name and level come from the check."""

    path: Path
    """Where in the manifest."""
    what: str
    fix: str
    level: CheckLevel | None = None
    """Where it differs from the check's own."""


class Check(NamedTuple):
    id: str
    level: CheckLevel
    about: str
    """One line for people: what is looked at."""
    look: Callable[[Workload], Iterator[CheckHit]]


class Problem(NamedTuple):
    check: str
    level: CheckLevel
    job: str
    what: str
    fix: str
    line: int | None = None


class NotChecked(NamedTuple):
    """The check could not be made: what it needs was not to be seen."""

    why: str


class RunningCheck(NamedTuple):
    id: str
    level: CheckLevel
    about: str
    look: Callable[[Running], list[CheckHit] | NotChecked]


class CheckState(StrEnum):
    FOUND = "found"
    FINE = "fine"
    NOT_OBSERVABLE = "not observable"


class Outcome(NamedTuple):
    """A check that was made, or why it was not."""

    check: str
    about: str
    state: CheckState
    found: tuple[Problem, ...] = ()
    why: str = ""
