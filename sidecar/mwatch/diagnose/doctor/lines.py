# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The result of `mwatch doctor`: one line per check, with a fix for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

UNREACHABLE = "cluster"
"""Name of the line about an unreachable cluster."""


class LineState(StrEnum):
    OK = "ok"
    PROBLEM = "problem"
    SKIPPED = "skipped"


class DoctorLine(NamedTuple):
    name: str
    state: LineState
    text: str
    """The result; for a skipped check, why it did not run."""
    fix: str = ""
    manifest: str = ""
    """YAML for `kubectl apply -f -`, if applying it is the fix."""


def ok(name: str, text: str) -> DoctorLine:
    return DoctorLine(name, LineState.OK, text)


def problem(name: str, text: str, fix: str, manifest: str = "") -> DoctorLine:
    return DoctorLine(name, LineState.PROBLEM, text, fix, manifest)


def skipped(name: str, why: str, fix: str = "", manifest: str = "") -> DoctorLine:
    return DoctorLine(name, LineState.SKIPPED, why, fix, manifest)


def unreachable(error: Exception, *, is_problem: bool = True) -> DoctorLine:
    """Make a line from an error whose message ends with its fix, as in `kube.errors`."""
    text, _, fix = str(error).partition("; ")
    state = LineState.PROBLEM if is_problem else LineState.SKIPPED
    return DoctorLine(UNREACHABLE, state, f"not reachable: {text}", fix)


class DoctorReport(NamedTuple):
    lines: tuple[DoctorLine, ...]
    is_reachable: bool = True
    """False if a cluster was named or configured but is unreachable."""

    @property
    def exit_code(self) -> int:
        if not self.is_reachable:
            return 3
        return int(any(each.state is LineState.PROBLEM for each in self.lines))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "is_well": self.exit_code == 0,
            "checks": [
                {
                    "name": each.name,
                    "state": each.state.value,
                    "text": each.text,
                    "fix": each.fix or None,
                    "manifest": each.manifest or None,
                }
                for each in self.lines
            ],
        }


def names(found: Sequence[str], most: int = 3) -> str:
    """Format names as `a, b, c and 4 more`."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
