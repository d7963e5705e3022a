# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Format times, durations, shares, culprits and actions as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mwatch.model.decision import Decision
    from mwatch.model.finding import Culprit, Evidence
    from mwatch.report.run_report import RunReport


def clock(report: RunReport, at: float | None, *, with_date: bool = True) -> str:
    """`2026-11-15 04:12:40`, or `+72 s` if the log has no timestamps."""
    if at is None:
        return "?"
    if report.clock.is_relative:
        return f"+{duration(at)}"
    from mwatch.report.run_report import iso

    text = iso(at + report.clock.offset_seconds).replace("T", " ")[:19]
    return text if with_date else text[-8:]


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "?"


def culprit_text(culprit: Culprit | None) -> str | None:
    """`rank 3 (tp 1 pp 0 dp 0), pod worker-1, node a-17: behind`; None: unknown."""
    return None if culprit is None else culprit.label(" ")


def place(evidence: Evidence) -> str:
    if evidence.file is None:
        return ""
    return evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"


def action_text(decision: Decision) -> str:
    from mwatch.model.decision import describe_action

    return describe_action(decision.action, decision.resume_from, decision.resume_reason)
