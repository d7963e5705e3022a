# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How a recorded log ends where it shows no exit.

People save and paste excerpts: the fault is the last thing in them. A root fault or an exception is
the cause of the end if no progress follows it, and if it is near the end of its file, since
progress may be printed in a form that mwatch does not know. Errors of other ranks, the teardown and
the launcher's report may follow it. This is for recorded logs only: in a live job printed text does
not prove an end.

Where nothing explains the end, or only processes that died of something else, the words of the last
lines do (`detect.shared.words`, `detect.shared.last_lines`). Words alone are never acted on.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter

from mwatch.detect.crashed import at_log_end, interrupted_hang, is_unexplained
from mwatch.detect.shared.cluster_lines import pod_deleted, taken_away
from mwatch.detect.shared.last_lines import (
    completed,
    counted_until,
    empty_shards,
    ends_well,
    host_memory_full,
    is_completed,
    keeps_failing,
    members_missing,
    prepares_data,
    ranks_given_twice,
    started_anew,
    stood_still,
    stopped_short,
    trials_pending,
)
from mwatch.detect.shared.loss_lines import (
    bad_numbers,
    climbs,
    impossible_since_load,
    jumped,
    lost_at_once,
    never_falls,
    nothing_learnt,
    spiked,
    stays_high,
    worse_since_resume,
)
from mwatch.detect.shared.speed_lines import (
    compared,
    flushes_memory,
    slow_network,
    slowed,
    waits_for_data,
)
from mwatch.detect.shared.words import (
    Complaint,
    is_listed,
    is_typed,
    listed_again,
    worst_complaint,
)
from mwatch.engine.engine import Assessment, Engine
from mwatch.model.cause import Cause
from mwatch.model.event import Arguments, Checkpoint, Event, Fault, Iteration, Phase, Validation
from mwatch.model.fault import Role
from mwatch.model.finding import LOG_END, Evidence, Finding, Severity
from mwatch.model.job import Attempt, ErrorSeen
from mwatch.model.observation import Observation
from mwatch.parse.lines.line import ANSI

LAST_LINES = 200
"""How far from the end of its file the last error may be."""


_QUOTED = 160
_MOST_BENIGN = 4096  # the last lines of many files
_CTRL_C = "^C"  # before any progress: somebody lost patience
_BY_WORDS = 0.4
_WORDS = "/words"
_KILLED = re.compile(r"SIGKILL|(?:code|status|exitcode|signal)\W{1,6}(?:-9|9|137)\b|= -9\b")
_ASKED_TO_END = re.compile(
    r"SIGTERM|\b15 death signal|signal\W{1,4}15\b|(?:code|status|exitcode)\W{1,6}(?:-15|143)\b"
)
_WAITS = re.compile(r"\bFile \"[^\"]{0,300}torch/distributed/[^\"]{1,200}\", line \d+, in ")
_LAST_FRAMES = 6  # lines
_INTERRUPT = re.compile(r"\bKeyboardInterrupt\b")
_LAST_WORDS = 30  # lines
_HELPER = re.compile(r"\bException in thread |\bProcess \w*(?:PoolWorker|Feeder|Process)-[\d:]+$")
_CHAINED = re.compile(r"During handling of the above|was the direct cause of")
_PEER_GONE = re.compile(
    r"(?:^|\.)(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError"
    r"|CancelledError)$"
)
_ENDED_BY_HAND = (Cause.DELETED_BY_USER, Cause.KILLED)
_OF_NUMBERS = (Cause.LOSS_SPIKE, Cause.NAN, Cause.SLOW)
_BY_ITS_WORDS = "By its words the log ends with this cause"
_ENDS = {
    Cause.FINISHED: "The last lines report the end of the run",
    Cause.FINISHED_EARLY: "It ended by itself, far from its last step",
}
_AS_VAGUE = (Cause.CRASH, Cause.KILLED)
"""What words cannot add to a process that died."""


_LOOKS = (
    bad_numbers, stood_still, members_missing, started_anew, worse_since_resume,
    impossible_since_load, lost_at_once, jumped, stays_high, climbs, spiked,
    nothing_learnt, never_falls, empty_shards, waits_for_data, keeps_failing, trials_pending,
    flushes_memory,
)  # fmt: skip
"""What the last lines may show where nothing complains."""
_CLEAR = (lost_at_once, jumped, stays_high, climbs, empty_shards)
"""Those of them that show a state which lasts."""


class LogEnd:
    def __init__(self) -> None:
        self.has_worked = False
        """A count rose in the last lines, in a form that no recogniser reads."""
        self._progress: dict[str, int] = {}
        self._last_step: dict[str, int] = {}
        self._harmless: set[tuple[str, int]] = set()
        self._benign: deque[tuple[str, int]] = deque(maxlen=_MOST_BENIGN)

    def note(self, what: Event | Observation) -> None:
        """Other ranks may still print that they start while one of them fails."""
        if isinstance(what, Phase) and what.name == "starting":
            return
        if isinstance(what, Fault) and what.role == Role.BENIGN:
            self._benign.append((what.file, what.line))
        if isinstance(what, Checkpoint) and what.edge != "end":
            return
        if isinstance(what, Iteration):
            is_again = self._last_step.get(what.file) == what.iteration
            self._last_step[what.file] = what.iteration
            if is_again:
                return  # a bar draws itself once more when its program dies
        if isinstance(what, Iteration | Validation | Arguments | Phase | Checkpoint):
            self._progress[what.file] = what.line

    def forget_harmless(
        self, attempt: Attempt, line_counts: Mapping[str, int], tails: Mapping[str, bytes]
    ) -> None:
        """Forget exceptions that were caught, since a count goes on rising after them in whatever
        form, and those of helpers that only lost their peer when the run ended."""
        if not (attempt.errors or attempt.exceptions or attempt.faults):
            return
        for file, tail in tails.items():
            lines = last_lines(tail, line_counts.get(file, 0))
            counted = counted_until(lines)
            self._progress[file] = max(counted, self._progress.get(file, 0))
            aside = _of_helpers(dict(lines), attempt.errors, file)
            self._harmless |= {(file, line) for line in aside}
            attempt.errors[:] = [
                each
                for each in attempt.errors
                if each.error.kind != "traceback" or each.error.file != file
                or (each.error.line > counted and each.error.line not in aside)
            ]  # fmt: skip

    def is_followed(self, finding: Finding) -> bool:
        """Whether progress was printed below all lines that show it."""
        shown = [(each.file, each.line) for each in finding.evidence if each.file and each.line]
        return bool(shown) and all(line < self._progress.get(file, 0) for file, line in shown)

    def fault(
        self,
        engine: Engine,
        assessment: Assessment,
        line_counts: Mapping[str, int],
        tails: Mapping[str, bytes],
    ) -> Finding | None:
        """Find what ended the log; None: nothing, or `assessment` says more. `line_counts`: lines
        by file; `tails`: their ends."""
        found = self._known_fault(engine, assessment, line_counts)
        lead = found or assessment.decision.finding
        last = {file: last_lines(tail, line_counts.get(file, 0)) for file, tail in tails.items()}
        is_finished = engine.job.attempt.is_finished
        if lead is None and is_finished and (short := _stopped_short(last)) is not None:
            return short
        if assessment.decision.finding is None and last and all(map(ends_well, last.values())):
            return None if is_finished else self.by_words(tails, line_counts)
        if better := _explained(lead, tails, line_counts, _after_new_start, _worse_since_resume):
            return better
        ways = (_after_its_end, _of_full_memory, _taken_away)
        if better := _explained(lead, tails, line_counts, *ways):
            return better
        if lead is not None and lead.cause in _ENDED_BY_HAND:
            return _interrupted_wait(lead, tails, line_counts) or found
        if lead is not None and lead.cause is Cause.USER_ERROR and lead.fault is None:
            return _after_bad_numbers(lead, tails, line_counts) or found
        if better := _explained(lead, tails, line_counts, _of_ranks_given_twice, _while_preparing):
            return better
        attempt = engine.job.attempt
        if lead is None and (is_finished or attempt.exit is not None):
            return None
        if lead is not None and not is_unexplained(engine.job, lead):
            return found
        harmless = self._harmless.union(self._benign)
        words = self.by_words(tails, line_counts, lead, harmless)
        return found if words is None or _is_known_slow(words, lead, assessment) else words

    def by_words(
        self,
        tails: Mapping[str, bytes],
        line_counts: Mapping[str, int],
        lead: Finding | None = None,
        harmless: Set[tuple[str, int]] = frozenset(),
    ) -> Finding | None:
        """`lead`: the end that the words are to explain; None: nothing shows an end. `harmless`:
        lines that are known to mean nothing."""
        ended: Finding | None = None
        for file, tail in tails.items():
            lines = last_lines(tail, line_counts.get(file, 0))
            taken = taken_away(lines) if lead is None else None
            if taken is not None and taken.cause is Cause.SUSPENDED:
                return _by_words(file, taken, None)
            if lead is None and ended is None:
                done = stopped_short(lines) or completed(lines)
                ended = _by_words(file, done, None) if done else None
            if lead is None and ends_well(lines):
                continue
            counted = counted_until(lines)
            self.has_worked = self.has_worked or counted > 0
            behind = max(self._progress.get(file, 0), counted)
            is_known = behind or any(is_completed(text) for _, text in lines)
            past = listed_again(lines)
            complaint = worst_complaint(
                (number, text)
                for number, text in lines
                if (number > behind and (file, number) not in harmless) or is_listed(text)
                if not (is_known and _CTRL_C in text) and number not in past
            )
            is_clear = False
            if complaint is not None and complaint.cause is Cause.CHECKPOINT:
                complaint = started_anew(lines) or complaint
            is_remark = complaint is not None and is_typed(complaint.text)
            if lead is None and (complaint is None or is_remark):
                is_known = file in self._last_step
                shown = ((look in _CLEAR, look(lines)) for look in _looks(is_known))
                is_clear, complaint = next(filter(itemgetter(1), shown), (False, complaint))
            if taken is not None and taken.cause is Cause.DRAINED:
                complaint = complaint or taken
            if complaint is not None and (lead is None or complaint.cause not in _AS_VAGUE):
                return _by_words(file, complaint, lead, is_clear=is_clear)
        return ended

    def _known_fault(
        self, engine: Engine, assessment: Assessment, line_counts: Mapping[str, int]
    ) -> Finding | None:
        attempt = engine.job.attempt
        has_ended = attempt.ended_at is not None and not attempt.is_finished
        if attempt.exit is not None or has_ended:
            return None
        places = [(each.fault.file, each.fault.line) for each in attempt.faults]
        raised = (*attempt.errors, *attempt.exceptions)
        places += [(each.error.file, each.error.line) for each in raised]
        if not any(line_counts.get(file, 0) - line <= LAST_LINES for file, line in places):
            return None
        found = at_log_end(engine.job, self._progress, engine.settings)
        shown = assessment.decision.finding
        is_known = shown is not None and shown.severity is Severity.CRITICAL
        is_hang = found is not None and found.cause is Cause.HANG is assessment.decision.cause
        return None if is_hang and is_known else found


@lru_cache(maxsize=8)
def last_lines(tail: bytes, count: int) -> tuple[tuple[int, str], ...]:
    """The last lines of a file of `count` lines, with their numbers."""
    text = ANSI.sub(b"", tail).decode("utf-8", "replace")
    lines = text.removesuffix("\n").split("\n")[-LAST_LINES:]
    return tuple(enumerate(lines, count - len(lines) + 1))


def _looks(is_known: bool) -> Iterator[Callable[[Sequence[tuple[int, str]]], Complaint | None]]:
    """`is_known`: a recogniser read steps of these lines, so no bar is that of a download."""
    yield from _LOOKS
    if is_known:
        yield slow_network
    yield compared
    yield partial(slowed, has_bars=is_known)
    if is_known:
        yield pod_deleted


def _is_known_slow(words: Finding, lead: Finding | None, assessment: Assessment) -> bool:
    """A detector says more of it."""
    is_slow = words.cause is Cause.SLOW and lead is None
    return is_slow and any(each.cause is Cause.SLOW for each in assessment.findings)


def _stopped_short(last: Mapping[str, Sequence[tuple[int, str]]]) -> Finding | None:
    """A run that reported its end had made few of the steps that it announced; None: not so."""
    short = ((file, stopped_short(lines, is_done=True)) for file, lines in last.items())
    return next((_by_words(file, each, None) for file, each in short if each), None)


def is_only_words(finding: Finding) -> bool:
    """Nothing but the words of the last lines shows it, not even that the run has ended."""
    is_of_words = finding.detector == LOG_END and finding.fingerprint.endswith(_WORDS)
    return is_of_words and finding.is_guess and finding.severity is not Severity.CRITICAL


def _of_helpers(lines: Mapping[int, str], errors: Sequence[ErrorSeen], file: str) -> set[int]:
    """Where tracebacks begin that a thread or a worker printed whose peer was gone."""
    found: set[int] = set()
    is_aside = False
    for error in sorted((e.error for e in errors if e.error.file == file), key=lambda e: e.line):
        above = range(error.line - 1, error.line - 4, -1)
        before = next((lines[n] for n in above if lines.get(n, "").strip()), "")
        goes_on = is_aside and _CHAINED.search(before) is not None
        is_aside = goes_on or _HELPER.search(before) is not None
        if is_aside and (not error.error or _PEER_GONE.search(error.error)):
            found |= {error.line, error.error_line or error.line}
    return found


def _explained(
    lead: Finding | None,
    tails: Mapping[str, bytes],
    line_counts: Mapping[str, int],
    *ways: Callable[[Finding, Mapping[str, bytes], Mapping[str, int]], Finding | None],
) -> Finding | None:
    """The first of these that says more about this end; None: none does."""
    found = (way(lead, tails, line_counts) for way in ways) if lead is not None else ()
    return next(filter(None, found), None)


def _interrupted_wait(
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


def _after_its_end(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Somebody interrupted what was left of a run that had reported its end; None: not so."""
    if not any(_INTERRUPT.search(each.text) for each in lead.evidence):
        return None
    file, before = _lines_before(lead, tails, line_counts)
    last = before[-_LAST_WORDS:]
    done = next((each for each in reversed(last) if is_completed(each[1])), None)
    if done is None:
        return None
    return _by_words(file, Complaint(Cause.FINISHED, done[0], done[1].strip()), None)


def _after_bad_numbers(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The exception was raised over a loss that is not finite; None: not so."""
    return _shown_before(lead, tails, line_counts, partial(bad_numbers, least=1))


def _after_new_start(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The losses jumped because the run began anew instead of resuming; None: not so."""
    if lead.cause is not Cause.LOSS_SPIKE:
        return None
    for file, tail in tails.items():
        anew = started_anew(last_lines(tail, line_counts.get(file, 0)))
        if anew is not None:
            return _by_words(file, anew, lead)
    return None


def _worse_since_resume(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Losses jumped when the run was resumed, or were higher ever since an earlier end; None: not
    so, or `lead` came later."""
    last = max((each.line or 0 for each in lead.evidence), default=0)
    for file, tail in tails.items():
        worse = worse_since_resume(last_lines(tail, line_counts.get(file, 0)))
        if worse is not None and (lead.cause is Cause.LOSS_SPIKE or worse.line > last):
            return replace(_by_words(file, worse, None), severity=Severity.CRITICAL)
    return None


def _of_full_memory(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """A process was killed when the host's memory was nearly full; None: not so."""
    killed = any(_KILLED.search(each.text) for each in lead.evidence)
    if lead.cause is not Cause.KILLED or not killed:
        return None
    return _shown_before(lead, tails, line_counts, host_memory_full)


def _taken_away(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """The cluster or a person says why the pods went; None: not so, or `lead` is no such end."""
    is_asked = lead.cause is Cause.KILLED and any(
        _ASKED_TO_END.search(each.text) for each in lead.evidence
    )
    if not is_asked and lead.cause not in (Cause.LOST_POD, Cause.UNSCHEDULABLE):
        return None
    for file, tail in tails.items():
        taken = taken_away(last_lines(tail, line_counts.get(file, 0)))
        if taken is not None and (is_asked or taken.cause is not Cause.DELETED_BY_USER):
            return replace(_by_words(file, taken, lead), is_guess=True)
    return None


def _of_ranks_given_twice(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> Finding | None:
    """Ranks were missing because two processes had the rank of one; None: not so."""
    if lead.cause not in (Cause.FABRIC, Cause.HANG):
        return None
    return _shown_before(lead, tails, line_counts, ranks_given_twice)


def _while_preparing(
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
    return _by_words(file, found, lead) if found is not None else None


def _lines_before(
    lead: Finding, tails: Mapping[str, bytes], line_counts: Mapping[str, int]
) -> tuple[str, list[tuple[int, str]]]:
    """The file of the first evidence, and its last lines above that; none if it names no line."""
    shown = lead.evidence[0] if lead.evidence else None
    if shown is None or not shown.file or not shown.line or shown.file not in tails:
        return "", []
    lines = last_lines(tails[shown.file], line_counts.get(shown.file, 0))
    return shown.file, [(number, text) for number, text in lines if number < shown.line]


def _by_words(
    file: str, complaint: Complaint, lead: Finding | None, *, is_clear: bool = False
) -> Finding:
    """`lead`: the end that the words explain; None: nothing shows an end. `is_clear`: what they
    show lasts, so that somebody has to act."""
    is_of_numbers = complaint.cause in _OF_NUMBERS
    opening = "The last lines show it, from here on" if is_of_numbers else _BY_ITS_WORDS
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
