# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the last lines of a recorded log show of a run's speed, in whatever form a program prints
it: steps that became slow or wait for data, and a network that NCCL could not use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from operator import lt
from statistics import median

from mwatch.detect.shared.words import MAX_LINE, Complaint, is_typed
from mwatch.model.cause import Cause

BAR = re.compile(
    r"\b(\d{1,12})/(\d{1,12}) \[[\d:]{4,12}<[^,\]\n]{1,20},\s{1,4}"
    r"(\d{1,9}(?:\.\d{1,6})?)(s/it|it/s)"
)
_VALUE = r"(?P<value>\d{1,9}(?:,\d{3}){0,3}(?:\.\d{1,6})?(?:e[+-]?\d{1,2})?)"
_COUNTS = r"(?:it(?:er(?:ation)?)?|step|batch|example|sample|token|image|sequence|word)(?:e?s)?"
_RATES = (
    re.compile(
        rf"\b(?P<name>tps|tgs|wps|SamplesPerSec"
        rf"|{_COUNTS}(?:/|_per_|[ _]per[ _])s(?:ec(?:ond)?)?\w{{0,16}}"
        rf"|throughput\w{{0,24}})[\"']?\s{{0,8}}[:=|~]\s{{0,8}}{_VALUE}\b",
        re.I,
    ),
    re.compile(rf"\b{_VALUE} (?P<name>{_COUNTS}/s(?:ec(?:ond)?)?)\b", re.I),
)
"""How many in a second."""
_TIMES = (
    re.compile(
        r"\b(?P<name>(?:(?:step|iter(?:ation)?|batch)[ _]time"
        r"|time per (?:iter(?:ation)?|step|batch)|elapse|batch_cost) ?(?:\(m?s(?:ec)?\))?)"
        rf"[\"']?\s{{0,8}}[:=]\s{{0,8}}{_VALUE}\b",
        re.I,
    ),
    re.compile(
        rf"\b{_VALUE} (?P<name>m?s(?:ec(?:ond)?s?)?/(?:it(?:er)?|step|batch|sample))\b", re.I
    ),
    re.compile(rf"(?<![\w/])(?P<name>time): {_VALUE} {{1,4}}data_time: "),
)
_FEW = 3  # lines, counts of a bar or rates; of the last two each
_MUCH_SLOWER = 2.5  # times as slow as each of as many before
_GROWING = 5  # lines of which each is slower
_DRIFTING = 8  # lines of which none is faster than the one before
_DRIFT = 1.5  # times as slow as the first of them
_LEVEL = 5  # lines in a row that take nearly as long, before and after
_NOISE, _LITTLE = 0.99, 1.2  # times the one before
_EVEN = 1.15  # times the shortest of them that the longest may take
_HIGHER_LEVEL = 1.5  # times as slow as the slowest of those before
_BATCH = re.compile(r"\bglobal[ _]batch[ _]size\W{1,4}(\d{1,9})\b", re.I)
_NUMBER = r"[\"']?(?: ?\(\w{1,2}\))?(?:\s{0,4}[:=]\s{0,4}|\s)(\d{1,9}\.\d{1,6})(?![\d/x])"
_DATA_TIME = re.compile(rf"\bdata(?:[ _]?(?:load(?:ing)?|wait))?(?:[ _]?time|_s)?{_NUMBER}", re.I)
_STEP_TIME = re.compile(
    rf"\b(?:batch|step|iter(?:ation)?)?[ _]?(?:time|batch \(t\)){_NUMBER}", re.I
)
_WORK_TIME = re.compile(
    r"\b(?:updt|update|comp(?:ute)?|model|forward)_?(?:s|t|time)" + _NUMBER, re.I
)
"""Without the wait."""
_TIMERS = re.compile(r"^\W{0,8}time \(ms\) \|")
_TIMER = re.compile(r"\b(forward|backward|batch[-_](?:input|generator)): (\d{1,12}(?:\.\d{1,6})?)")
_EPOCH = re.compile(r"\bepoch(?:\(train\))?\W{0,4}\d{1,6}", re.I)
_FLUSHES = re.compile(r"\ballocator cache flushes since last step\b")
_WAITS = 0.5  # share of the time that steps wait for data
_NONE_THERE = re.compile(
    r"Only EFA provider is supported|[Nn]o (?:EFA|eligible) (?:device|provider)"
)
_NO_FAST_NETWORK = re.compile(
    r"NCCL WARN NET/\w+ .{0,80}\b(?:failed|unexpected|error|unable|cannot)"
    r"|NET/Plugin.{0,300}(?:not found \(required by|undefined symbol|cannot open shared object)",
    re.I,
)
_OF_NCCL = re.compile(r"([\w.-]{1,64}):\d+:\d+ \[\d+\] NCCL INFO (?:.{0,80} nranks (\d{1,6}))?")
_GPUS_OF_A_MACHINE = 8
_SOCKETS = re.compile(r"Using network Socket|Initialized NET plugin Socket")


def slowed(lines: Iterable[tuple[int, str]], *, has_bars: bool = True) -> Complaint | None:
    """The last counts of a progress bar, or the last rates or times of one name, are several times
    as slow as those before, or all have come to a higher level. `has_bars`: false where a bar may
    be that of a download."""
    found = (_slowdown(each, least) for each, least in _timed(lines, has_bars=has_bars))
    return next(filter(None, found), None)


def slows_down(lines: Iterable[tuple[int, str]], *, has_bars: bool = True) -> Complaint | None:
    """The same, if each of the last is slower than the one before."""
    for each, least in _timed(lines, has_bars=has_bars):
        if _grows([seconds for seconds, _, _ in each]) and each[-1][0] >= least:
            return Complaint(Cause.SLOW, *each[-1][1:])
    return None


def _timed(
    lines: Iterable[tuple[int, str]], *, has_bars: bool
) -> Iterator[tuple[list[tuple[float, int, str]], float]]:
    """The times of each bar and name, with line and text, and how long a slow one is at least."""
    bars: dict[str, dict[int, tuple[float, int, str]]] = {}
    times: dict[str, list[tuple[float, int, str]]] = {}
    for number, line in lines:
        text = line[:MAX_LINE]
        for found in BAR.finditer(text) if has_bars else ():
            rate = float(found[3])
            if rate:
                seconds = rate if found[4] == "s/it" else 1 / rate
                bars.setdefault(found[2], {})[int(found[1])] = seconds, number, line.strip()
        for name, seconds in _printed_times(text):
            times.setdefault(name, []).append((seconds, number, line.strip()))
    yield from (([*steps.values()], 1.0) for steps in bars.values())
    yield from ((each, 0.0) for each in times.values())


def _printed_times(text: str) -> Iterator[tuple[str, float]]:
    """What a line says of its speed: the name, with the size of the batch, and a time in whatever
    unit."""
    batch = _BATCH.search(text)
    size = batch[1] if batch else ""
    for form in (*_RATES, *_TIMES):
        for found in form.finditer(text):
            value = float(found["value"].replace(",", ""))
            if 0.0 < value < inf:
                yield found["name"].lower() + size, 1 / value if form in _RATES else value


def _slowdown(times: Sequence[tuple[float, int, str]], least: float) -> Complaint | None:
    """`times`: seconds, line and text. `least`: shorter ones are never slow."""
    if len(times) < 2 * _FEW:
        return None
    if (begin := _level_begins([seconds for seconds, _, _ in times])) and times[-1][0] >= least:
        return Complaint(Cause.SLOW, *times[begin][1:])
    slow = min(seconds for seconds, _, _ in times[-_FEW:])
    is_fast = [_MUCH_SLOWER * seconds < slow for seconds, _, _ in times]
    begin = next((at for at in range(len(times) - 1, -1, -1) if is_fast[at]), -1) + 1
    fast = sum(is_fast[:begin])
    if fast < max(_FEW, begin // 2) or slow < least:
        return None
    return Complaint(Cause.SLOW, times[begin][1], times[begin][2])


def _grows(seconds: Sequence[float]) -> bool:
    """Each of the last is longer than the one before and the last one much longer, or they become
    longer little by little."""
    last, many = seconds[-_GROWING:], seconds[-2 * _DRIFTING :]
    rises = len(last) == _GROWING and all(map(lt, last, last[1:]))
    if rises and last[-1] > _MUCH_SLOWER * last[0]:
        return True
    by_little = (_NOISE < after / before < _LITTLE for before, after in pairwise(many))
    return len(many) >= _DRIFTING and many[-1] > _DRIFT * many[0] and all(by_little)


def _level_begins(seconds: Sequence[float]) -> int:
    """Where nearly equal times went over to much longer ones that are nearly equal, at once or
    step by step; 0: nowhere."""
    least = min(seconds[-_LEVEL:])
    low = (at for at in range(len(seconds) - 1, -1, -1) if seconds[at] * _HIGHER_LEVEL < least)
    begin = next(low, -1) + 1
    parts = seconds[max(0, begin - _LEVEL) : begin], seconds[begin:][-_LEVEL:]
    is_even = all(len(part) >= _LEVEL and max(part) < _EVEN * min(part) for part in parts)
    if not is_even or max(parts[0]) * _HIGHER_LEVEL >= least:
        return 0
    return begin if min(seconds[begin:]) > max(parts[0]) else 0


def compared(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Somebody put lines of two runs side by side, with a command or remark between them, and one
    is several times as slow as the other."""
    parts: dict[str, dict[int, list[tuple[float, int, str]]]] = {}
    part = 0
    for number, line in lines:
        text = line[:MAX_LINE]
        part += is_typed(text)
        for name, seconds in _printed_times(text):
            of_part = parts.setdefault(name, {}).setdefault(part, [])
            of_part.append((seconds, number, line.strip()))
    for of_name in parts.values():
        usual = {part: median(each[0] for each in found) for part, found in of_name.items()}
        slow = max(usual, key=usual.__getitem__)
        if usual[slow] > _MUCH_SLOWER * min(usual.values()) and len(of_name[slow]) > 1:
            return Complaint(Cause.SLOW, *of_name[slow][0][1:])
    return None


def waits_for_data(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The lines print how long each step waits for its data, and it is most of the time. The first
    one of an epoch starts the workers."""
    later: list[tuple[float, float, int, str]] = []
    epoch = ""
    for number, line in lines:
        text = line[:MAX_LINE]
        if _TIMERS.match(text):
            timers = {name: float(value) for name, value in _TIMER.findall(text)}
            whole = timers.pop("forward", 0.0) + timers.pop("backward", 0.0)
            later += [(data, whole, number, line.strip()) for data in timers.values() if whole]
        waited, step = _DATA_TIME.search(text), _STEP_TIME.search(text)
        worked = _WORK_TIME.search(text)
        data = float(waited[1]) if waited else 0.0
        whole = data + float(worked[1]) if worked else float(step[1]) if step else 0.0
        if waited and 0.0 < whole >= data / _EVEN:
            named = _EPOCH.search(text)
            before, epoch = epoch, named[0] if named else "-"
            if epoch == before:
                later.append((data, whole, number, line.strip()))
    if sum(data > _WAITS * step for data, step, _, _ in later) < _FEW - 1:
        return None
    if sum(data for data, *_ in later) <= _WAITS * sum(step for _, step, *_ in later):
        return None
    return Complaint(Cause.SLOW, *max(later)[2:])


def flushes_memory(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The GPU's memory is so full that the allocator gives back its cache step after step."""
    found = [(number, line) for number, line in lines if _FLUSHES.search(line[:MAX_LINE])]
    return Complaint(Cause.SLOW, found[0][0], found[0][1].strip()) if len(found) >= _FEW else None


def slow_network(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """NCCL gave up its network and goes on over plain sockets, between machines."""
    is_without, found, hosts, ranks = False, None, set(), 0
    for number, line in lines:
        text = line[:MAX_LINE]
        if place := _OF_NCCL.search(text):
            hosts.add(place[1])
            ranks = max(ranks, int(place[2] or 0))
        if _NONE_THERE.search(text):
            return None  # the machine has no fast network that could be used
        is_without = is_without or _NO_FAST_NETWORK.search(text) is not None
        if is_without and found is None and _SOCKETS.search(text):
            found = Complaint(Cause.SLOW, number, line.strip())
    is_one_machine = len(hosts) == 1 and 0 < ranks <= _GPUS_OF_A_MACHINE
    return None if is_one_machine else found
