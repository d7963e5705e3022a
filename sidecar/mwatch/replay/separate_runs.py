# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Group the log files of a folder by run: pods at the same time, or attempts one after another.

Files belong to one run if they were written at the same time, if their names differ only in numbers
and words such as `previous` or `worker`, or if one continues the other: same total of iterations,
within a day, and the earlier one did not finish. They belong to different runs if they print
different totals, are more than a week apart, or overlap in time but differ in iterations, world
size or start of rank 0. A file that is not a trainer's log goes to the only run, if there is just
one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from mwatch.config import catalogue
from mwatch.replay.file_spans import STEPS, FileSpan, examine
from mwatch.replay.log_files import PACKED, LogFile, find
from mwatch.runtime.files import STDIN

_CONTINUES_SECONDS = 86400.0
_APART_SECONDS = 7 * 86400.0
_OVERLAP_SECONDS = 60.0
_VARIABLE = re.compile(
    r"(?<![^-_./])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![^-_./])"
    r"|(?<![^-_./])[0-9a-f]{64}(?![^-_./])"
    r"|\d+"
    r"|(?<![^-_./])(?:previous|prev|current|old|bak|stdout|stderr|out|err|log|txt)(?![^-_.])"
    r"|(?<![^-_./])(?:master|worker|launcher|chief|head|leader|node|rank|pod|host)(?![^-_.\d])",
    re.I,
)
"""Includes the ids of pods and containers in file names given by the kubelet."""
_JOINED = re.compile(r"(?:[-_.]*#)+")
_POD_END = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}(?=$|[._])")
"""The random suffix that Kubernetes appends to a pod's name."""


def separate_runs(names: Sequence[str]) -> list[list[str]]:
    """Return the log files of one folder by run; empty if `names` is not one folder or all files
    are of one run."""
    if len(names) != 1 or names[0] == STDIN or not os.path.isdir(names[0]):
        return []
    files = find(names).files
    if len(files) < 2:
        return []
    _, grammar = catalogue.with_grammar()
    spans = [(file, examine(file, grammar)) for file in files]
    runs: list[_Run] = []
    for each in sorted(spans, key=lambda pair: (pair[1].first is None, pair[1].first or 0.0)):
        related = [run for run in runs if _belongs(each, run)]
        joined = [each, *(member for run in related for member in run)]
        runs = [run for run in runs if run not in related] + [joined]
    runs = _with_strays(runs)
    if len(runs) < 2:
        return []
    order = {file.path: place for place, file in enumerate(files)}
    grouped = [sorted((file.path for file, _ in run), key=order.__getitem__) for run in runs]
    return sorted(grouped, key=lambda run: order[run[0]])


_Run = list[tuple[LogFile, FileSpan]]


def _with_strays(runs: list[_Run]) -> list[_Run]:
    """Add files without a trainer's line to the only run, unless their times contradict that."""
    main = [run for run in runs if any(span.roles for _, span in run)]
    if len(main) != 1:
        return runs
    apart = []
    for run in runs:
        if run is main[0]:
            continue
        if any(_belongs_by_time(each, main[0]) for each in run):
            main[0].extend(run)
        else:
            apart.append(run)
    return [main[0], *apart]


def _belongs_by_time(one: tuple[LogFile, FileSpan], run: _Run) -> bool:
    return not any(_contradict(one[1], span) for _, span in run)


def _belongs(one: tuple[LogFile, FileSpan], run: Sequence[tuple[LogFile, FileSpan]]) -> bool:
    if any(_contradict(one[1], span) for _, span in run):
        return False
    return any(_agree(one, other) for other in run)


def _gap(one: FileSpan, other: FileSpan) -> float | None:
    """Return the seconds between the two, negative if they overlap; None: one prints no times."""
    if one.first is None or one.last is None or other.first is None or other.last is None:
        return None
    return max(one.first, other.first) - min(one.last, other.last)


def _contradict(one: FileSpan, other: FileSpan) -> bool:
    gap = _gap(one, other)
    if gap is not None and gap > _APART_SECONDS:
        return True
    if _are_two_starts(one, other, gap):
        return True
    if STEPS not in one.roles or STEPS not in other.roles:
        return False
    early, late = sorted((one, other), key=lambda span: span.first or 0.0)
    is_longer = (late.begins or 0) > max(1, early.begins or 0)  # a resume with more iterations
    if None not in (one.total, other.total) and one.total != other.total and not is_longer:
        return True
    return gap is not None and gap < -_OVERLAP_SECONDS and one.begins != other.begins


def _are_two_starts(one: FileSpan, other: FileSpan, gap: float | None) -> bool:
    """Whether both files are of rank 0 of two jobs that ran at the same time."""
    if not (one.is_of_rank_0 and other.is_of_rank_0) or gap is None or gap > -_OVERLAP_SECONDS:
        return False
    starts_apart = abs((one.first or 0.0) - (other.first or 0.0))
    return one.world != other.world or starts_apart > _OVERLAP_SECONDS


def _agree(one: tuple[LogFile, FileSpan], other: tuple[LogFile, FileSpan]) -> bool:
    if _key(one[0]) == _key(other[0]):
        return True
    both_step = STEPS in one[1].roles and STEPS in other[1].roles
    if _overlap(one[1], other[1]):
        return not both_step or one[1].begins == other[1].begins
    gap = _gap(one[1], other[1])
    if gap is None:
        return False
    early, late = sorted((one[1], other[1]), key=lambda span: span.first or 0.0)
    continues = both_step and late.total is not None and late.total == early.total
    return continues and not early.is_done and gap <= _CONTINUES_SECONDS


def _overlap(one: FileSpan, other: FileSpan) -> bool:
    if one.written is None or other.written is None:
        return False
    return max(one.written[0], other.written[0]) < min(one.written[1], other.written[1])


def _key(file: LogFile) -> str:
    """Return the name without the parts that differ between pods, ranks and attempts of a run."""
    return _JOINED.sub("#", _VARIABLE.sub("#", _POD_END.sub("-#", PACKED.sub("", file.shown))))
