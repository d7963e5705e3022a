# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Quote iteration lines in evidence exactly as printed, so that users can search for them.

Iteration lines are read by the million in blocks, and their texts are not kept. The few that serve
as evidence are read again; where that is impossible (standard input), a summary of the line stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from mwatch.detect.shared.evidence import is_summary, with_quotes
from mwatch.model.finding import Evidence
from mwatch.report.log_ends import numbered, quotation
from mwatch.report.run_report import RunReport
from mwatch.runtime.files import STDIN

_MAX_QUOTES = 200


def quoted(report: RunReport, paths: Mapping[str, str]) -> RunReport:
    """Replace summaries in evidence by quotes. `paths`: path of each file, by name in evidence."""
    every = [each for finding in report.findings for each in finding.evidence]
    voices = (voice for incident in report.incidents for voice in incident.voices)
    every += [each for voice in voices for each in voice.evidence]
    wanted: dict[str, set[int]] = {}
    for each in every[:_MAX_QUOTES]:
        if paths.get(each.file or "", STDIN) != STDIN and each.line and is_summary(each):
            wanted.setdefault(each.file or "", set()).add(each.line)
    texts = {
        (file, number): text
        for file, numbers in wanted.items()
        for number, text in _lines(paths[file], numbers)
    }
    if not texts:
        return report

    def quote(file: str, line: int) -> str | None:
        return texts.get((file, line))

    return with_evidence(report, lambda evidence: with_quotes(evidence, quote))


def with_evidence(
    report: RunReport, change: Callable[[tuple[Evidence, ...]], tuple[Evidence, ...]]
) -> RunReport:
    incidents = tuple(
        replace(
            incident,
            voices=tuple(
                replace(voice, evidence=change(voice.evidence)) for voice in incident.voices
            ),
        )
        for incident in report.incidents
    )
    findings = tuple(replace(each, evidence=change(each.evidence)) for each in report.findings)
    decision = report.decision
    if decision.finding is not None:
        lead = replace(decision.finding, evidence=change(decision.finding.evidence))
        decision = replace(decision, finding=lead)
    return replace(report, findings=findings, incidents=incidents, decision=decision)


def _lines(file: str, numbers: set[int]) -> Iterator[tuple[int, str]]:
    last = max(numbers)
    for lines, first in numbered(file):
        for number in sorted(each for each in numbers if first <= each < first + len(lines)):
            yield number, quotation(lines[number - first])
        if first + len(lines) > last:
            return
