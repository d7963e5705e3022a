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
from functools import partial
from operator import itemgetter

from mwatch.detect.crashed import at_log_end, is_unexplained
from mwatch.detect.shared.cluster_lines import killed_for_memory, pod_deleted, taken_away
from mwatch.detect.shared.last_lines import (
    completed,
    counted_until,
    empty_shards,
    ends_well,
    is_completed,
    keeps_failing,
    members_missing,
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
    lost_its_loss,
    never_falls,
    nothing_learnt,
    spiked,
    stays_high,
    worse_since_resume,
)
from mwatch.detect.shared.save_lines import saves_fail
from mwatch.detect.shared.speed_lines import (
    compared,
    flushes_memory,
    slow_network,
    slowed,
    slows_down,
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
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Attempt, ErrorSeen
from mwatch.model.observation import Observation
from mwatch.replay.end_reasons import (
    LAST_LINES,
    after_bad_numbers,
    after_its_end,
    after_new_start,
    by_words,
    explained,
    interrupted_wait,
    last_lines,
    of_cluster,
    of_full_memory,
    of_lost_path,
    of_missing_pod,
    of_ranks_given_twice,
    while_preparing,
    worse_than_before,
)

_MOST_BENIGN = 4096  # the last lines of many files
_CTRL_C = "^C"  # before any progress: somebody lost patience
_HELPER = re.compile(r"\bException in thread |\bProcess \w*(?:PoolWorker|Feeder|Process)-[\d:]+$")
_CHAINED = re.compile(r"During handling of the above|was the direct cause of")
_PEER_GONE = re.compile(
    r"(?:^|\.)(?:EOFError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError"
    r"|CancelledError)$"
)
_ENDED_BY_HAND = (Cause.DELETED_BY_USER, Cause.KILLED)
_AS_VAGUE = (Cause.CRASH, Cause.KILLED)
"""What words cannot add to a process that died."""


_LOOKS = (
    stood_still, members_missing, started_anew, worse_since_resume,
    impossible_since_load, lost_at_once, lost_its_loss, jumped, stays_high, climbs, spiked,
    nothing_learnt, never_falls, empty_shards, waits_for_data, keeps_failing, trials_pending,
    killed_for_memory, saves_fail,
)  # fmt: skip
"""What the last lines may show where nothing complains."""
_SLOWS_DOWN = (partial(slows_down, has_bars=False), partial(slows_down, has_bars=True))
_FOR_A_PERSON = (*_SLOWS_DOWN, slow_network)
"""What does not get better until somebody changes something."""
_CLEAR = (killed_for_memory, lost_at_once, jumped, stays_high, climbs, empty_shards)
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
            return None if is_finished else self.from_words(tails, line_counts)
        if better := explained(lead, tails, line_counts, after_new_start, worse_than_before):
            return better
        ways = (after_its_end, of_full_memory, of_lost_path, of_missing_pod, of_cluster)
        if better := explained(lead, tails, line_counts, *ways):
            return better
        if lead is not None and lead.cause in _ENDED_BY_HAND:
            return interrupted_wait(lead, tails, line_counts) or found
        if lead is not None and lead.cause is Cause.USER_ERROR and lead.fault is None:
            return after_bad_numbers(lead, tails, line_counts) or found
        if better := explained(lead, tails, line_counts, of_ranks_given_twice, while_preparing):
            return better
        attempt = engine.job.attempt
        if lead is None and (is_finished or attempt.exit is not None):
            return None
        if lead is not None and not is_unexplained(engine.job, lead):
            return found
        harmless = self._harmless.union(self._benign)
        words = self.from_words(tails, line_counts, lead, harmless)
        return found if words is None or _is_known_slow(words, lead, assessment) else words

    def from_words(
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
                return by_words(file, taken, None)
            may_be_done = lead is None and ended is None
            if may_be_done and (done := stopped_short(lines) or completed(lines)) is not None:
                ended = by_words(file, done, None)
                harmless = harmless | {(file, done.line)}
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
            look = None
            if complaint is not None and complaint.cause is Cause.CHECKPOINT:
                complaint = started_anew(lines) or complaint
            is_remark = complaint is not None and is_typed(complaint.text)
            if lead is None and (complaint is None or is_remark):
                is_known = file in self._last_step
                shown = ((look, look(lines)) for look in _looks(is_known))
                look, complaint = next(filter(itemgetter(1), shown), (None, complaint))
            if taken is not None and taken.cause is Cause.DRAINED:
                complaint = complaint or taken
            if complaint is not None and (lead is None or complaint.cause not in _AS_VAGUE):
                found = by_words(file, complaint, lead, is_clear=look in _CLEAR)
                return replace(found, comes_again=look in _FOR_A_PERSON)
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


def _looks(is_known: bool) -> Iterator[Callable[[Sequence[tuple[int, str]]], Complaint | None]]:
    """`is_known`: a recogniser read steps of these lines, so no bar is that of a download."""
    yield bad_numbers
    yield flushes_memory
    yield _SLOWS_DOWN[is_known]
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
    return next((by_words(file, each, None) for file, each in short if each), None)


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
