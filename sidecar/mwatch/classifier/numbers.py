# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Features for the classifier from the numbers in a log, such as a falling loss or rising times.

Numbers are identified by name, in any format that a program prints. Detectors judge the numbers of
a run exactly; here they only show which other logs this log resembles.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import isfinite
from statistics import median

_MOST_CHARACTERS = 1200
"""Characters read of a line."""
_LONGEST_NAME = 28
_VALUE = r"(-?\d[\d,.]{0,20}(?:e[+-]?\d{1,3})?|-?nan|-?inf(?:inity)?)\b"
_NUMBER = re.compile(r"[\"']?\s{0,8}[:=|]{1,2}\s{0,8}(?:tensor\(|[\"'\[])?" + _VALUE, re.I)
_NAME = re.compile(r"[a-z_][\w/ .()-]{0,27}$", re.I)
_SERIES = (
    ("scale", re.compile(r"loss.*scale|scale\W*$")),
    ("grad", re.compile(r"grad.*norm")),
    ("side", re.compile(r"(?=.*loss).*(?:eval|val|test|dev|aux|router|z_?loss|balanc)")),
    ("loss", re.compile(r"loss|^\W*(?:ppl|nll)\W*$")),
    ("rate", re.compile(r"throughput|tflop|token|samples?[/_ ](?:per|s)|tps|mfu|it/s")),
    ("time", re.compile(r"elapsed|(?:iter|step).*time|time.*(?:iter|step)|sec.*it|dt\b|duration")),
    ("skip", re.compile(r"skip")),
    ("nans", re.compile(r"nan")),
    ("reward", re.compile(r"reward")),
    ("lr", re.compile(r"^\W*(?:lr|learning.rate)\W*$")),
)
"""Kinds of numbers; the first pattern that matches a number's name decides."""
_COUNT = re.compile(
    r"\b(?:iter(?:ation)?|(?:global[_ ])?steps?|num_updates|batch|it|epoch)\b"
    r"\W{0,8}(\d{1,9})(?: ?(?:/|of) {0,9}(\d{1,9}))?",
    re.I,
)
_BAR = re.compile(r"(\d{1,3})%\|[^|\n]{0,300}\|\s{0,4}([\d.]{1,12}k?)/[\d.]{1,12}k?")
_SPEED = re.compile(r"<[^,\]\n]{1,20},\s{1,4}(\d{1,9}(?:\.\d{1,6})?) ?(s/it|it/s)")
"""Speed in a progress bar."""
_LOADS = re.compile(
    r"\b(?:load|restor|resum|continu)\w*[^\n]{0,160}"
    r"\b(?:checkpoint|ckpt|global[_ ]step|step|iteration|weights|state)s?\b",
    re.I,
)
_SECONDS = r"[\"']?(?: ?\(\w{1,2}\))?(?:\s{0,4}[:=]\s{0,4}|\s)(\d{1,9}\.\d{1,6})(?![\d/x])"
_DATA_TIME = re.compile(
    rf"\bdata(?:[ _]?(?:load(?:ing)?|wait))?(?:[ _]?time|_s|_t)?{_SECONDS}", re.I
)
_STEP_TIME = re.compile(
    rf"\b(?:batch|step|iter(?:ation)?|elapsed)?[ _]?(?:time|batch \(t\)){_SECONDS}", re.I
)
_REDUCED = "reduced_train_loss"
"""NeMo's loss over all pipeline stages; it also prints that of the stage, which may have none."""
_LEVELS = (0.3, 0.8, 0.98, 1.02, 1.2, 1.6, 3.0)
"""Bucket limits for the ratio of the last third of a series to its first third."""
_PEAKS = (1.5, 3.0)  # times the larger of the two
_FEW = 3  # fewest numbers that show a trend
_FLAT, _EVEN = 0.001, 0.02  # spread of all values as a share of the largest
_ALWAYS, _HARDLY = 0.85, 0.15  # share of the steps that rise
_LOSSES = ((8.0, "huge"), (4.0, "high"))
_COURSES = ("loss", "grad", "time", "rate")
"""Series whose course is examined in detail."""
_NEAR = 5  # values on each side of a load
_SINCE_LOAD = (0.8, 0.98, 1.02, 1.1, 1.25, 1.6, 3.0)  # times as large as before
_OVER_LEAST, _OF_MOST = (1.02, 1.2, 1.5, 2.5, 5.0), (0.2, 0.5, 0.8, 0.95)
_STEPS_UP = (1.05, 1.3, 1.6, 2.5, 5.0)
_BEFORE, _AFTER = 8, 3  # values compared before and after a step
_RUNS = (2, 4, 7)
_SHARES = (0.1, 0.3, 0.5, 0.8, 1.2)  # share of a step spent waiting for data
_SPANS = (3, 30, 300, 3000)  # iterations
_STAYS = 0.02  # spread of all losses as a share of the largest
_A_FEW, _CLOSE = 10, 0.8  # iteration a count goes back to, and as a share of the one before
_TINY_LOSS, _HUGE_GRADIENT, _LEAST_SCALE = 0.01, 50.0, 1.0
_SIZES = (1, 3, 8)
_LINES_BELOW = (0, 3, 10)
_LINES = (8, 20, 50)
_NEAR_THE_END, _AT_THE_BEGINNING = 0.97, 0.03  # share of the iterations

_Series = dict[str, list[tuple[int, float]]]
"""The numbers of each kind, each with the index of its line."""


def shapes(lines: Sequence[str]) -> set[str]:
    """Return the features of all lines together, such as `n:loss:rises`."""
    lines = [line[:_MOST_CHARACTERS] for line in lines]
    series = _series(lines)
    found = {f"n:{kind}:{each}" for kind, numbers in series.items() for each in _of(kind, numbers)}
    others = (
        _of_the_end(lines, series),
        _of_counts(lines, series),
        _of_bars(lines),
        _since_load(lines, series),
        _of_data(lines),
    )
    return found.union(*others)


def _series(lines: Iterable[str]) -> _Series:
    series: _Series = {}
    for index, line in enumerate(lines):
        in_line: dict[str, float] = {}
        for number in _NUMBER.finditer(line):
            begin = max(number.start() - _LONGEST_NAME, 0)
            name = _NAME.search(line[begin : number.start()])
            kind = _kind(name[0].lower()) if name else None
            if name and kind and (kind not in in_line or _REDUCED in name[0]):
                with suppress(ValueError):  # digits and dots that are not a number
                    in_line[kind] = float(number[1].rstrip(".,").replace(",", ""))
        for kind, value in in_line.items():
            series.setdefault(kind, []).append((index, value))
    return series


def _kind(name: str) -> str | None:
    return next((kind for kind, pattern in _SERIES if pattern.search(name)), None)


def _of(kind: str, numbers: Sequence[tuple[int, float]]) -> Iterator[str]:
    values = [value for _, value in numbers]
    finite = [value for value in values if isfinite(value)]
    yield _bucket(len(values), _SIZES)
    if len(finite) < len(values):
        yield from _of_bad(values, len(values) - len(finite))
    if len(values) > 1 and values[0] == 0:
        yield "begins at zero"
    if len(values) > 1 and values[-1] == 0:
        yield "ends at zero"
    if len(values) >= _FEW:
        if not any(values):
            yield "zero"
        if kind in ("skip", "nans") and all(value > 0 for value in values):
            yield "always"
    if kind in ("skip", "nans") and values[-1] > 0:
        yield "some"
    if len(finite) >= _FEW:
        yield from _trend(kind, finite)
    if len(finite) > _FEW and kind in _COURSES:
        yield from _course(finite)


def _of_bad(values: Sequence[float], bad: int) -> Iterator[str]:
    yield "not finite"
    if bad == len(values):
        yield "never finite"
    if not isfinite(values[-1]):
        yield "ends not finite"
    if not isfinite(values[0]):
        yield "begins not finite"
    if bad >= _FEW:
        yield "often not finite"


def _trend(kind: str, values: Sequence[float]) -> Iterator[str]:
    third = max(1, len(values) // 3)
    first, last = median(values[:third]), median(values[-third:])
    least, most = min(values), max(values)
    if first > 0:
        yield "times " + _bucket(last / first, _LEVELS)
        peaks = (times for times in _PEAKS if last > 0 and most > times * max(first, last))
        yield from (f"peak {times}" for times in peaks)
    if most > 0 and most - least < _FLAT * most:
        yield "flat"
    elif most > 0 and most - least < _EVEN * most:
        yield "even"
    if len(values) > _FEW:
        rises = sum(after > before for before, after in pairwise(values)) / (len(values) - 1)
        if rises > _ALWAYS:
            yield "rises"
        elif rises < _HARDLY:
            yield "never rises"
    yield from _level(kind, last)


def _course(values: Sequence[float]) -> Iterator[str]:
    """Yield how the last values compare with the extremes before, and how they got there."""
    pairs = [median(values[at : at + 2]) for at in range(len(values) - 1)]
    least, most = min(pairs), max(pairs)
    if least > 0:
        yield f"end over least {_bucket(pairs[-1] / least, _OVER_LEAST)}"
    if most > 0:
        yield f"end of most {_bucket(pairs[-1] / most, _OF_MOST)}"
    steps = [
        median(values[at : at + _AFTER]) / before
        for at in range(2, len(values) - 1)
        if (before := median(values[max(0, at - _BEFORE) : at])) > 0
    ]
    if steps:
        yield f"largest step up {_bucket(max(steps), _STEPS_UP)}"
    rises = _runs(after > before for before, after in pairwise(values))
    falls = _runs(after < before for before, after in pairwise(values))
    yield f"longest rise {_bucket(max(rises), _RUNS)}"
    yield f"longest fall {_bucket(max(falls), _RUNS)}"
    if rises[-1] > _FEW:
        yield "rising at the end"


def _runs(signs: Iterable[bool]) -> list[int]:
    """Return, for each position, how many signs in a row up to it are true."""
    runs = [0]
    for sign in signs:
        runs.append(runs[-1] + 1 if sign else 0)
    return runs[1:]


def _level(kind: str, last: float) -> Iterator[str]:
    if kind == "loss":
        yield from (name for limit, name in _LOSSES if last > limit)
        if last < _TINY_LOSS:
            yield "tiny"
    elif (kind == "scale" and last <= _LEAST_SCALE) or (kind == "grad" and last > _HUGE_GRADIENT):
        yield "at its limit"


def _of_the_end(lines: Sequence[str], series: _Series) -> Iterator[str]:
    shown = [index for index, line in enumerate(lines) if line.strip()]
    yield f"n:lines:{_bucket(len(shown), _LINES)}"
    ends = [series[kind][-1][0] for kind in ("loss", "time", "rate") if kind in series]
    if not ends:
        yield "n:no steps"
        return
    yield f"n:below:{_bucket(sum(index > max(ends) for index in shown), _LINES_BELOW)}"


def _of_counts(lines: Iterable[str], series: _Series) -> Iterator[str]:
    found = [each for line in lines if (each := _COUNT.search(line))]
    if not found:
        return
    counts = [int(each[1]) for each in found]
    if found[-1][2]:
        done = counts[-1] / max(int(found[-1][2]), 1)
        yield f"n:count:{_bucket(done, (_AT_THE_BEGINNING, _NEAR_THE_END, 1 - 1e-9))}"
    for before, after in pairwise(counts):
        if after < before:
            yield "n:count:goes back"
            yield f"n:count:goes back {_how_far(before, after)}"
    if len(set(counts)) == 1:
        yield "n:count:stays"
    if max(counts) <= _FEW:
        yield "n:count:first steps"
    span = _bucket(max(counts) - min(counts), _SPANS)
    yield f"n:count:span {span}"
    losses = [loss for _, loss in series.get("loss", ()) if isfinite(loss)]
    if len(losses) >= _FEW and max(losses) - min(losses) < _STAYS * max(losses):
        yield f"n:loss:stays over {span}"


def _how_far(before: int, after: int) -> str:
    if after <= 1:
        return "to the first"
    if after <= _A_FEW:
        return "to one of the first"
    return "a little" if after > _CLOSE * before else "far"


def _since_load(lines: Sequence[str], series: _Series) -> Iterator[str]:
    """Yield how the values after the load of a checkpoint compare with those before it."""
    loads = [index for index, line in enumerate(lines) if _LOADS.search(line)]
    for kind in (*_COURSES, "lr"):
        values = [each for each in series.get(kind, ()) if isfinite(each[1])]
        load = max((each for each in loads if values and each < values[-1][0]), default=None)
        if load is None:
            continue
        before = [value for index, value in values if index < load][-_NEAR:]
        after = [value for index, value in values if index > load][:_NEAR]
        if not before:
            yield f"n:{kind}:loaded first"
        elif len(before) > 1 and median(before) > 0:
            times = median(after) / median(before)
            yield f"n:{kind}:since load {_bucket(times, _SINCE_LOAD)}"


def _of_data(lines: Iterable[str]) -> Iterator[str]:
    """Yield the share of a step spent waiting for data."""
    times = ((_DATA_TIME.search(line), _STEP_TIME.search(line)) for line in lines)
    shares = [
        float(data[1]) / float(step[1]) for data, step in times if data and step and float(step[1])
    ]
    if shares:
        yield f"n:data share {_bucket(median(shares), _SHARES)}"


def _of_bars(lines: Sequence[str]) -> Iterator[str]:
    bars = [bar for line in lines for bar in _BAR.finditer(line)]
    if not bars:
        return
    yield f"n:bar:{_bucket(float(bars[-1][1]), (0, 99))}"
    if len(bars) >= _FEW and len({bar[2] for bar in bars[-_FEW:]}) == 1:
        yield "n:bar:stays"
    speeds = (found for line in lines for found in _SPEED.finditer(line))
    seconds = [
        value if found[2] == "s/it" else 1 / value
        for found in speeds
        if (value := float(found[1])) > 0
    ]
    if len(seconds) >= _FEW:
        yield from (f"n:bar:time:{each}" for each in _trend("bar", seconds))


def _bucket(value: float, limits: Sequence[float]) -> str:
    """Return the name of the first limit that is not below the value."""
    return next((f"to {limit:g}" for limit in limits if value <= limit), f"over {limits[-1]:g}")
