# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decide which lines of a recorded log require an assessment of the run.

A plain iteration line resembles those before it, so no detector can find anything new in it. Every
other line triggers an assessment, but errors that come by the thousand less and less often. What
builds up over many plain lines is found at the next assessment, which comes after at most a
twenty-fifth of the attempt's lines. The `calm_*` functions go over columns of numbers; each stops
before the first value that is not close to the usual one, a slowly moving average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import le, mul

from mwatch.model.event import (
    Error,
    Event,
    Fault,
    Iteration,
    Overflow,
    StepLines,
    Straggler,
    Timers,
)
from mwatch.model.fault import Role
from mwatch.model.observation import Observation

MEMORY = 0.01  # weight of a new value in the usual one: slower than any detector decides
HIGHER = 0.1  # share by which a loss may exceed the usual one
STEEPER = 2.5
SLOWER = 1.15
Values = Sequence[float]
Calm = Callable[[Values, float, int, int], tuple[int, float]]
"""Takes values, the usual value, begin and end; returns where it stopped and the new usual value.
"""


_FEWEST_TOGETHER = 32
MANY_LINES = 2048
_WEIGHTS = [MEMORY * (1 - MEMORY) ** age for age in reversed(range(MANY_LINES))]
"""Weights in the usual value of the values it was learnt from; the newest has the largest."""


def _calm(is_calm: Callable[[float, float], bool]) -> Calm:
    """`is_calm` compares a value with the usual one; if true, it is true for any smaller value."""

    def calm(values: Values, usual: float, begin: int, end: int) -> tuple[int, float]:
        if end - begin >= _FEWEST_TOGETHER:
            known = _after(values[begin:end], usual, is_calm)
            if known is not None:
                return end, known
            middle = (begin + end) // 2
            stop, usual = calm(values, usual, begin, middle)
            return (stop, usual) if stop < middle else calm(values, usual, middle, end)
        for index in range(begin, end):
            value = values[index]
            if not (-math.inf < value < math.inf and is_calm(value, usual)):
                return index, usual
            usual = usual + MEMORY * (value - usual)
        return end, usual

    return calm


def _after(values: Values, usual: float, is_calm: Callable[[float, float], bool]) -> float | None:
    """Return the usual value after all values; None if that cannot be computed at once.

    That requires that even the largest value is calm compared with the lowest usual value possible.
    """
    kept, lowest = (1 - MEMORY) ** len(values), min(values)
    least = usual if lowest >= usual else lowest + kept * (usual - lowest)
    if len(values) > MANY_LINES or not is_calm(max(values), least):
        return None
    known = kept * usual + sum(map(mul, values, _WEIGHTS[-len(values) :]))
    return known if math.isfinite(known) else None


calm_times = _calm(lambda value, usual: value <= SLOWER * usual)
calm_norms = _calm(lambda value, usual: value <= STEEPER * usual)
calm_losses = _calm(lambda value, usual: value <= usual + HIGHER * abs(usual))


def calm_scales(values: Values, last: float, begin: int, end: int) -> tuple[int, float]:
    """Stop where the loss scale falls; its usual value is the last one."""
    part = values[begin:end]
    if all(map(le, (last, *part), part)):
        return end, part[-1] if part else last
    for index, value in enumerate(part, begin):
        if value < last:
            return index, last
        last = value
    return end, last


def calm_counts(values: Values, _: float, begin: int, end: int) -> tuple[int, float]:
    """Stop where a count is not zero."""
    if not any(values[begin:end]):
        return end, 0.0
    return next(index for index in range(begin, end) if values[index]), 0.0


def pass_calm(
    columns: Sequence[tuple[Calm, Values, float]], begin: int, end: int
) -> tuple[int, list[float]]:
    """Return the first line in which a column is not calm, and the usual values up to there."""
    found: list[tuple[int, float]] = []
    stop = end
    for calm, values, usual in columns:
        found.append(calm(values, usual, begin, stop))
        stop = found[-1][0]
    return stop, [
        known if at == stop else calm(values, usual, begin, stop)[1]
        for (at, known), (calm, values, usual) in zip(found, columns, strict=True)
    ]


_SHARE_OF_LINES = 0.04
_FEWEST = 8
_PATIENCE = 64
_COMPLAINTS = 16  # assessments after which every second error is assessed, then every third, ...
_SILENT = frozenset({Timers, Overflow, Straggler})


class EvaluationThrottle:
    def __init__(self) -> None:
        self._usual: dict[str, float] = {}
        self._elapsed: float | None = None
        self._norm: float | None = None
        self._scale: float | None = None
        self._furthest = -1
        self._lines = 0
        self._since_look = 0
        self._odd_since_look = 0
        self._same_looks = 0
        self._complaints_since_look = 0
        self._complaint_looks = 0

    def wants(self, what: Event | Observation) -> bool:
        """Whether to assess the run after this observation."""
        if isinstance(what, Iteration):
            return self.wants_line(what)
        if isinstance(what, Error) and what.kind == "exception":
            return False  # it does not prove an end
        if isinstance(what, Error) and what.kind == "traceback":
            return self._wants_complaint()
        if isinstance(what, Fault):
            return what.role != Role.BENIGN and self._wants_complaint()
        return type(what) not in _SILENT

    def _wants_complaint(self) -> bool:
        """Assess errors less and less often, as there may be thousands that training survives."""
        self._complaints_since_look += 1
        return self._complaints_since_look > self._complaint_looks // _COMPLAINTS

    def wants_line(self, line: Iteration) -> bool:
        self._lines += 1
        self._since_look += 1
        if self._is_odd(line):
            self._odd_since_look += 1
            return self._odd_since_look > self._same_looks // _PATIENCE
        return self._since_look > _FEWEST and self._since_look > _SHARE_OF_LINES * self._lines

    @property
    def has_new_errors(self) -> bool:
        return self._complaints_since_look > 0

    def copy(self) -> EvaluationThrottle:
        other = EvaluationThrottle()
        vars(other).update(vars(self), _usual=dict(self._usual))
        return other

    def pass_over(self, lines: StepLines, begin: int, end: int) -> int:
        """Learn from lines starting at `begin`, as `wants_line` does; stop before the first line
        that needs an assessment."""
        while begin < end:
            due = min(end, begin + self._lines_until_due())
            calm = self._pass_calm(lines, begin, due)
            if calm == due or self._odd_since_look + 1 > self._same_looks // _PATIENCE:
                return calm
            self.wants_line(lines.event(calm))  # odd, but assessed often enough
            begin = calm + 1
        return end

    def _lines_until_due(self) -> int:
        """Return how many plain lines may follow before an assessment is due by count alone."""
        since, lines = self._since_look, self._lines
        share = _SHARE_OF_LINES
        count = max(_FEWEST - since, int((share * lines - since) / (1 - share)) - 2, 0)
        while since + count + 1 <= max(_FEWEST, share * (lines + count + 1)):
            count += 1
        return count

    def _pass_calm(self, lines: StepLines, begin: int, end: int) -> int:
        """Learn up to the first line that clearly differs from those before; return its index."""
        columns = self._columns(lines)
        if columns is None or lines.iterations[begin] <= self._furthest:
            return begin
        stop, learnt = pass_calm(list(columns.values()), begin, end)
        if stop == begin:
            return begin
        now = dict(zip(columns, learnt, strict=True))
        self._elapsed = now.get("elapsed_ms", self._elapsed)
        self._norm = now.get("grad_norm", self._norm)
        self._scale = now.get("loss_scale", self._scale)
        for name in self._usual:
            self._usual[name] = now[f"loss {name}"]
        self._furthest = lines.iterations[stop - 1]
        self._lines += stop - begin
        self._since_look += stop - begin
        return stop

    def _columns(self, lines: StepLines) -> dict[str, tuple[Calm, Values, float]] | None:
        """Return the columns to check, with their usual values; None for lines of a new kind."""
        if lines.losses.keys() != self._usual.keys():
            return None
        columns: dict[str, tuple[Calm, Values, float]] = {}
        for field, calm, usual in (
            ("skipped", calm_counts, 0.0),
            ("nan", calm_counts, 0.0),
            ("elapsed_ms", calm_times, self._elapsed),
            ("grad_norm", calm_norms, self._norm),
            ("loss_scale", calm_scales, self._scale),
        ):
            values = lines.column(field)
            if values is None and not usual:
                continue
            if values is None or usual is None:
                return None
            columns[field] = (calm, values, usual)
        for name, loss in self._usual.items():
            columns[f"loss {name}"] = (calm_losses, lines.losses[name], loss)
        return columns

    def looked(self, *, is_new: bool) -> None:
        """Record an assessment; those that find nothing new make later ones less frequent."""
        self._since_look = self._odd_since_look = 0
        self._complaint_looks += self._complaints_since_look > 0
        self._complaints_since_look = 0
        self._same_looks = 0 if is_new else self._same_looks + 1

    def attempt_began(self) -> None:
        self._usual.clear()
        self._elapsed = self._norm = self._scale = None
        self._lines = self._same_looks = self._complaint_looks = 0

    def _is_odd(self, line: Iteration) -> bool:
        """Whether the line is unusual; learn from it either way."""
        odd = bool(line.skipped or line.nan or line.first_of_process)
        if line.iteration <= self._furthest:
            odd = True
        else:
            self._furthest = line.iteration
        elapsed, norm, scale = line.elapsed_ms, line.grad_norm, line.loss_scale
        if elapsed is not None:
            usual = self._elapsed
            if usual is not None and -math.inf < elapsed <= SLOWER * usual:
                self._elapsed = usual + MEMORY * (elapsed - usual)
            else:
                odd |= usual is not None
                self._elapsed = _follow(usual, elapsed)
        if norm is not None or self._norm is not None:
            usual = self._norm
            if usual is not None and norm is not None and -math.inf < norm <= STEEPER * usual:
                self._norm = usual + MEMORY * (norm - usual)
            else:
                odd |= norm is None or usual is not None
                self._norm = _follow(usual, norm)
        if scale is not None:
            odd |= self._scale is not None and scale < self._scale
            self._scale = scale
        return self._has_odd_loss(line.losses) or odd

    def _has_odd_loss(self, losses: Mapping[str, float]) -> bool:
        """Whether a loss is unusual or missing; Megatron omits losses that are NaN."""
        known = self._usual
        is_begun = bool(known)
        odd = is_begun and len(losses) != len(known)
        for name, loss in losses.items():
            usual = known.get(name)
            if usual is None or not math.isfinite(loss):
                odd |= is_begun
                known[name] = _follow(usual, loss) or 0.0
            else:
                odd |= loss > usual + HIGHER * abs(usual)
                known[name] = usual + MEMORY * (loss - usual)
        return odd


def _follow(usual: float | None, value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return usual
    return value if usual is None else usual + MEMORY * (value - usual)
