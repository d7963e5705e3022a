# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Why a recorded log ended as it did, by the lines around the end that was found.

Each way takes the finding of that end, the last lines of all files and how many lines the files
have, and returns a finding that says more, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial

from mwatch.classifier.classifier import is_progress
from mwatch.detect.crashed import interrupted_hang
from mwatch.detect.shared.cluster_lines import taken_away
from mwatch.detect.shared.last_lines import (
    host_memory_full,
    is_completed,
    prepares_data,
    ranks_given_twice,
    started_anew,
    stood_still,
)
from mwatch.detect.shared.loss_lines import bad_numbers, has_loss, worse_since_resume
from mwatch.detect.shared.words import Complaint
from mwatch.model.cause import Cause
from mwatch.model.finding import LOG_END, Evidence, Finding, Severity
from mwatch.parse.lines.line import ANSI

LAST_LINES = 200
"""How far from the end of its file the last error may be."""
_QUOTED = 160
_BY_WORDS = 0.4
_WORDS = "/words"
_KILLED = re.compile(r"SIGKILL|(?:code|status|exitcode|signal)\W{1,6}(?:-9|9|137)\b|= -9\b")
_ASKED_TO_END = re.compile(
    r"SIGTERM|\b15 death signal|signal\W{1,4}15\b|(?:code|status|exitcode)\W{1,6}(?:-15|143)\b"
)
_PEER_GONE = re.compile(r"\bpeer\b|ncclRemoteError|remote process")
_PATH_LOST = re.compile(
    r"NET/IB ?:[^\n]{0,120}Got completion [^\n]{0,200}(?:with error|status=|vendor err)"
)
_NO_ROOM = re.compile(r"\bFailedScheduling\b[^\n]{0,200}\bnodes are available: ")
_WAITS = re.compile(r"\bFile \"[^\"]{0,300}torch/distributed/[^\"]{1,200}\", line \d+, in ")
_LAST_FRAMES = 6  # lines
_INTERRUPT = re.compile(r"\bKeyboardInterrupt\b")
_WAITING = frozenset({Cause.UNSCHEDULABLE, Cause.SUSPENDED})
_STEPS_IN_FLIGHT = 2
"""So many may still be printed while the last collective waits."""
_SUCCEEDED = re.compile(r"\bworker group (?:successfully )?finished\b.{0,40}(?:SUCCEEDED|Waiting)")
_LAST_WORDS = 30  # lines
_FROM_OUTSIDE = (
    Cause.LOST_POD, Cause.PREEMPTED, Cause.KILLED, Cause.DRAINED, Cause.HARDWARE, Cause.FABRIC,
)  # fmt: skip
_OF_NUMBERS = (Cause.LOSS_SPIKE, Cause.NAN, Cause.SLOW)
_BY_ITS_WORDS = "The last lines point to this cause"
ONLY_WORDS = "only the wording of the log suggests it"
_ENDS = {
    Cause.FINISHED: "The last lines report the end of the run",
    Cause.FINISHED_EARLY: "It ended by itself, far from its last step",
}


@lru_cache(maxsize=8)
def last_lines(tail: bytes, count: int) -> tuple[tuple[int, str], ...]:
    """The last lines of a file of `count` lines, with their numbers."""
    text = ANSI.sub(b"", tail).decode("utf-8", "replace")
    lines = text.removesuffix("\n").split("\n")[-LAST_LINES:]
    return tuple(enumerate(lines, count - len(lines) + 1))


def is_only_words(finding: Finding) -> bool:
    """Nothing but the words of the last lines shows it, not even that the run has ended."""
    is_of_words = finding.detector == LOG_END and finding.fingerprint.endswith(_WORDS)
    return is_of_words and finding.is_guess and finding.severity is not Severity.CRITICAL


def explained(
    lead: Finding | None,
    tails: Mapping[str, bytes],
    line_counts: Mapping[str, int],
    *ways: Callable[[Finding, Mapping[str, bytes], Mapping[str, int]], Finding | None],
) -> Finding | None:
    """The first of these that says more about this end; None: none does."""
    found = (way(lead, tails, line_counts) for way in ways) if lead is not None else ()
    return next(filter(None, found), None)


def after_new_start(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The losses jumped because the run began anew instead of resuming, or it did so after an end
    that nothing of the run had caused; None: not so."""
    if lead.cause is not Cause.LOSS_SPIKE and lead.cause not in _FROM_OUTSIDE:
        return None
    last = max((each.line or 0 for each in lead.evidence), default=0)
    for file, tail in tails.items():
        lines = last_lines(tail, line_counts.get(file, 0))
        anew = started_anew(lines)
        if anew is None:
            continue
        trains = any(has_loss(text) for number, text in lines if number > max(last, anew.line))
        if lead.cause is Cause.LOSS_SPIKE or (anew.line > last and trains):
            return by_words(file, anew, lead if lead.cause is Cause.LOSS_SPIKE else None)
    return None


def worse_than_before(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Losses jumped when the run was resumed, or were higher ever since an earlier end; None: not
    so, or `lead` came later."""
    last = max((each.line or 0 for each in lead.evidence), default=0)
    for file, tail in tails.items():
        worse = worse_since_resume(last_lines(tail, line_counts.get(file, 0)))
        if worse is not None and (lead.cause is Cause.LOSS_SPIKE or worse.line > last):
            return replace(by_words(file, worse, None), severity=Severity.CRITICAL)
    return None


def after_its_end(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Somebody interrupted what was left of a run that had reported its end, or its launchers lost
    each other after it; None: not so."""
    file, before = _lines_before(lead, tails, line_counts)
    last = before[-_LAST_WORDS:]
    if any(_INTERRUPT.search(each.text) for each in lead.evidence):
        done = next((each for each in reversed(last) if is_completed(each[1])), None)
    elif lead.cause is Cause.FABRIC:
        done = next((each for each in reversed(last) if _SUCCEEDED.search(each[1])), None)
    else:
        done = None
    if done is None:
        return None
    return by_words(file, Complaint(Cause.FINISHED, done[0], done[1].strip()), None)


def of_full_memory(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """A process was killed when the host's memory was nearly full; None: not so."""
    killed = any(_KILLED.search(each.text) for each in lead.evidence)
    if lead.cause is not Cause.KILLED or not killed:
        return None
    return _shown_before(lead, tails, line_counts, host_memory_full)


def of_lost_path(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The collective that timed out had lost its connection: NCCL does not make a new one.
    None: not so."""
    if lead.cause is not Cause.HANG:
        return None

    def lost(before: list[tuple[int, str]]) -> Complaint | None:
        found = next((each for each in reversed(before) if _PATH_LOST.search(each[1])), None)
        if found is None:
            return None
        steps = sum(is_progress(text) for number, text in before if number > found[0])
        is_cause = steps <= _STEPS_IN_FLIGHT
        return Complaint(Cause.FABRIC, found[0], found[1].strip()) if is_cause else None

    return _shown_before(lead, tails, line_counts, lost)


def of_missing_pod(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The others waited for a pod that has no room; None: not so."""
    if lead.cause not in (Cause.HANG, Cause.FABRIC):
        return None
    for file, tail in tails.items():
        lines = last_lines(tail, line_counts.get(file, 0))
        pending = next((each for each in lines if _NO_ROOM.search(each[1])), None)
        if pending is not None and not any(is_progress(text) for _, text in lines):
            complaint = Complaint(Cause.UNSCHEDULABLE, pending[0], pending[1].strip())
            return replace(by_words(file, complaint, lead), is_guess=True)
    return None


def of_cluster(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The cluster or a person says why the pods went; None: not so, or `lead` is no such end."""
    is_asked = lead.cause is Cause.KILLED and any(
        _ASKED_TO_END.search(each.text) for each in lead.evidence
    )
    if lead.cause is Cause.FABRIC and any(_PEER_GONE.search(each.text) for each in lead.evidence):
        return _shown_before(lead, tails, line_counts, taken_away)
    if not is_asked and lead.cause not in (Cause.LOST_POD, Cause.UNSCHEDULABLE):
        return None
    for file, tail in tails.items():
        taken = taken_away(last_lines(tail, line_counts.get(file, 0)))
        if taken is None or (lead.cause is Cause.UNSCHEDULABLE and taken.cause in _WAITING):
            continue  # the event says more than the state of the job
        if is_asked or taken.cause is not Cause.DELETED_BY_USER:
            return replace(by_words(file, taken, lead), is_guess=True)
    return None


def interrupted_wait(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Who ended it found it waiting in a collective, or had looked why nothing came any more;
    None: not so."""
    _, before = _lines_before(lead, tails, line_counts)
    last = [text for _, text in before[-_LAST_FRAMES:]]
    if lead.cause is Cause.DELETED_BY_USER and any(map(_WAITS.search, last)):
        summary = "It was stopped by hand while it waited for other ranks in a collective."
    elif stood_still(before):
        summary = "It was stopped after somebody had looked why nothing was printed any more."
    else:
        return None
    found = interrupted_hang(lead, summary)
    return replace(found, detector=LOG_END, confidence=_BY_WORDS, cannot_heal=False)


def after_bad_numbers(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The exception was raised over a loss that is not finite; None: not so."""
    return _shown_before(lead, tails, line_counts, partial(bad_numbers, least=1))


def of_ranks_given_twice(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Ranks were missing because two processes had the rank of one; None: not so."""
    if lead.cause not in (Cause.FABRIC, Cause.HANG):
        return None
    return _shown_before(lead, tails, line_counts, ranks_given_twice)


def while_preparing(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The other ranks waited while one still prepared the data; None: not so."""
    shown = _shown_before(lead, tails, line_counts, prepares_data)
    if lead.cause is not Cause.HANG or shown is None:
        return None
    return replace(
        lead,
        detector=LOG_END,
        summary=f"The ranks gave up waiting while the data was prepared. {lead.summary}",
        culprit=None,
        evidence=shown.evidence,
        cannot_heal=True,
        is_guess=False,
        comes_again=True,
        fingerprint="hang/preparing",
        next_step="prepare the data before the training, or raise the timeout of the collectives",
    )


def _shown_before(
    lead: Finding,
    tails: Mapping[str, bytes],
    line_counts: Mapping[str, int],
    look: Callable[[list[tuple[int, str]]], Complaint | None],
) -> Finding | None:
    """What the lines above the first evidence show, as the cause of this end; None: nothing."""
    file, before = _lines_before(lead, tails, line_counts)
    found = look(before)
    return by_words(file, found, lead) if found is not None else None


def _lines_before(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> tuple[str, list[tuple[int, str]]]:
    """The file of the first evidence, and its last lines above that; none if it names no line."""
    shown = lead.evidence[0] if lead.evidence else None
    if shown is None or not shown.file or not shown.line or shown.file not in tails:
        return "", []
    lines = last_lines(tails[shown.file], line_counts.get(shown.file, 0))
    return shown.file, [(number, text) for number, text in lines if number < shown.line]


def by_words(
    file: str, complaint: Complaint, lead: Finding | None, *, is_clear: bool = False
) -> Finding:
    """`lead`: the end that the words explain; None: nothing shows an end. `is_clear`: what they
    show lasts, so that somebody has to act."""
    is_of_numbers = complaint.cause in _OF_NUMBERS
    opening = "The last lines show it, starting with" if is_of_numbers else _BY_ITS_WORDS
    opening = _ENDS.get(complaint.cause, opening)
    return Finding(
        detector=LOG_END,
        cause=complaint.cause,
        severity=Severity.CRITICAL if lead or is_clear else Severity.WARNING,
        summary=f"{opening}: {complaint.text[:_QUOTED]}",
        since_time=lead.since_time if lead else None,
        confidence=_BY_WORDS,
        evidence=(Evidence(file, complaint.line, complaint.text), *(lead.evidence if lead else ())),
        cannot_heal=lead is not None,
        is_guess=lead is None,
        fingerprint=f"{complaint.cause}{_WORDS}",
    )
