# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Two witnesses before an action: who says so, and who says otherwise.

A hang is believed when progress is silent and somebody else agrees who does not read progress.
A death carries its own proof, unless training goes on after it. What a witness measures, and
how well, is the business of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mwatch.decide import signs, silence
from mwatch.decide.policy import RULES, Proof
from mwatch.model.decision import Witness
from mwatch.model.finding import Finding
from mwatch.model.job import Job, ProcessGone
from mwatch.model.settings import Settings

_MAX_WITNESSES = 8


class Judgement(NamedTuple):
    is_proven: bool
    reason: str
    """Who convinced us, or who is missing or disagrees."""
    witnesses: tuple[Witness, ...] = ()


def judge(job: Job, finding: Finding, findings: Sequence[Finding], settings: Settings) -> Judgement:
    if RULES[finding.cause].proof is Proof.OWN:
        said = Witness(finding.detector, True, finding.summary)
        return Judgement(True, "what was printed is proof enough", (said,))
    if silence.is_over(job):
        return _over(job, finding)
    if silence.tells_a_death(finding) or silence.is_sick(finding):
        return _death(job, finding, settings)
    return _stall(job, finding, findings, settings)


def _over(job: Job, finding: Finding) -> Judgement:
    gone = [
        Witness("process", True, f"{each.stream}: {_last_word(each)}")
        for each in job.attempt.gone.values()
    ]
    seen = gone or [Witness(finding.detector, True, finding.summary)]
    return Judgement(True, "the attempt is over", tuple(seen[:_MAX_WITNESSES]))


def _last_word(gone: ProcessGone) -> str:
    code = None if gone.exit.exit_code is None else f"exit code {gone.exit.exit_code}"
    told = ", ".join(each for each in (code, gone.exit.signal, gone.exit.reason) if each)
    return f"ended ({told or 'nobody said how'})"


def _death(job: Job, finding: Finding, settings: Settings) -> Judgement:
    said = Witness(finding.detector, True, finding.summary)
    later = silence.went_on_seconds(job, finding, settings)
    if later is None:
        return Judgement(True, "the log tells how it ended", (said,))
    text = f"iteration {job.attempt.iteration} came {later:.0f} s after it"
    reason = f"not acted on: training went on ({text})"
    return Judgement(False, reason, (said, Witness("progress", False, text)))


def _stall(
    job: Job, finding: Finding, findings: Sequence[Finding], settings: Settings
) -> Judgement:
    quiet = silence.silent_seconds(job)
    if not silence.is_readable(job):
        return Judgement(False, "not acted on: nobody can read whether there is progress")
    if not silence.is_silent(job, findings, settings):
        text = f"the last progress was {quiet:.0f} s ago"
        reason = f"not acted on: {text}, which is usual"
        return Judgement(False, reason, (Witness("progress", False, text),))
    progress = Witness("progress", True, f"silent for {quiet:.0f} s")
    said = signs.hear(job, finding, settings)
    heard = (progress, *said.agreeing, *said.disagreeing)[:_MAX_WITNESSES]
    if said.disagreeing:
        who = "; ".join(f"{each.name}: {each.text}" for each in said.disagreeing[:2])
        reason = f"not acted on: progress is silent for {quiet:.0f} s, but {who}"
        return Judgement(False, reason, heard)
    if not said.agreeing:
        reason = f"not acted on: progress is silent for {quiet:.0f} s, and {said.missing}"
        return Judgement(False, reason, heard)
    first = said.agreeing[0]
    reason = f"progress is silent for {quiet:.0f} s and {first.name} agrees ({first.text})"
    return Judgement(True, reason, heard)
