# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Quote iteration lines as evidence, as they were printed, so that a search finds them.

Millions of them are read in blocks and their texts are not kept, so the few that prove something
are read again. Where that is not possible (standard input) a summary of the line stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mwatch.model.finding import Evidence
from mwatch.report.log_ends import numbered, plain
from mwatch.report.run_report import RunReport
from mwatch.runtime.files import STDIN
from mwatch_trainer.scrub.scrubber import scrub_text

_STEP = re.compile(r"iteration \d+(?: \||$)")
_MAX_QUOTES = 200
_MAX_TEXT = 2000


def quoted(report: RunReport, paths: Mapping[str, str]) -> RunReport:
    """`paths`: of the files, by their names in evidence."""
    every = [each for finding in report.findings for each in finding.evidence]
    voices = (voice for incident in report.incidents for voice in incident.voices)
    every += [each for voice in voices for each in voice.evidence]
    wanted: dict[str, set[int]] = {}
    for each in every[:_MAX_QUOTES]:
        if paths.get(each.file or "", STDIN) != STDIN and each.line and _STEP.match(each.text):
            wanted.setdefault(each.file or "", set()).add(each.line)
    texts = {
        (file, number): text
        for file, numbers in wanted.items()
        for number, text in _lines(paths[file], numbers)
    }
    if not texts:
        return report
    incidents = tuple(
        replace(
            incident,
            voices=tuple(
                replace(voice, evidence=_replaced(voice.evidence, texts))
                for voice in incident.voices
            ),
        )
        for incident in report.incidents
    )
    findings = tuple(
        replace(each, evidence=_replaced(each.evidence, texts)) for each in report.findings
    )
    decision = report.decision
    if decision.finding is not None:
        lead = replace(decision.finding, evidence=_replaced(decision.finding.evidence, texts))
        decision = replace(decision, finding=lead)
    return replace(report, findings=findings, incidents=incidents, decision=decision)


def _replaced(
    evidence: tuple[Evidence, ...], texts: Mapping[tuple[str, int], str]
) -> tuple[Evidence, ...]:
    return tuple(
        replace(each, text=texts.get((each.file or "", each.line or 0), each.text))
        if _STEP.match(each.text)
        else each
        for each in evidence
    )


def _lines(file: str, numbers: set[int]) -> Iterator[tuple[int, str]]:
    last = max(numbers)
    for lines, first in numbered(file):
        for number in sorted(each for each in numbers if first <= each < first + len(lines)):
            yield number, _text(lines[number - first])
        if first + len(lines) > last:
            return


def _text(line: bytes) -> str:
    return scrub_text(plain(line[:_MAX_TEXT].decode("utf-8", "replace")).strip())
