# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which lines of a recording are worth a look: a live run is looked at once a second, a recorded
one of ten million lines cannot be.

A plain iteration line resembles those before it, so that no detector can say anything new about
it; everything else is worth a look. What only builds up over many plain lines is found at the
next look, which comes at the latest after a fiftieth of the lines of the attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy

from mwatch.app.calm_lines import (
    HIGHER,
    MEMORY,
    SLOWER,
    STEEPER,
    Calm,
    Values,
    calm_counts,
    calm_losses,
    calm_norms,
    calm_scales,
    calm_times,
    pass_calm,
)
from mwatch.model.event import Event, Fault, Iteration, Overflow, Straggler, Timers
from mwatch.model.fault import Role
from mwatch.model.observation import Observation
from mwatch.model.step_lines import StepLines

_SHARE = 0.02
_FEWEST = 8
_PATIENCE = 64
_SILENT = frozenset({Timers, Overflow, Straggler})


class Screen:
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

    def wants(self, what: Event | Observation) -> bool:
        """Whether to look now that `what` is known."""
        if isinstance(what, Iteration):
            return self.wants_line(what)
        if type(what) in _SILENT:
            return False
        return not (isinstance(what, Fault) and what.role == Role.BENIGN)

    def wants_line(self, line: Iteration) -> bool:
        self._lines += 1
        self._since_look += 1
        if self._is_odd(line):
            self._odd_since_look += 1
            return self._odd_since_look > self._same_looks // _PATIENCE
        return self._since_look > _FEWEST and self._since_look > _SHARE * self._lines

    def copy(self) -> Screen:
        other = copy(self)
        other._usual = dict(self._usual)
        return other

    def pass_over(self, lines: StepLines, begin: int, end: int) -> int:
        """Learns from lines from `begin` on, as `wants_line` does from each of them, and stops
        before the first that it wants."""
        while begin < end:
            due = min(end, begin + self._lines_until_due())
            calm = self._pass_calm(lines, begin, due)
            if calm == due or self._odd_since_look + 1 > self._same_looks // _PATIENCE:
                return calm
            self.wants_line(lines.events[calm])  # odd, but that has been looked at often enough
            begin = calm + 1
        return end

    def _lines_until_due(self) -> int:
        """How many plain lines may still come before one is looked at for its number alone."""
        since, lines = self._since_look, self._lines
        count = max(_FEWEST - since, int((_SHARE * lines - since) / (1 - _SHARE)) - 2, 0)
        while since + count + 1 <= max(_FEWEST, _SHARE * (lines + count + 1)):
            count += 1
        return count

    def _pass_calm(self, lines: StepLines, begin: int, end: int) -> int:
        """Up to the first line that is not plainly like those before."""
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
        """What has to stay calm, with what is usual of it; None: these lines are of a new kind."""
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

    def looked(self, *, is_news: bool) -> None:
        """Looks that keep saying the same are made less and less often."""
        self._since_look = self._odd_since_look = 0
        self._same_looks = 0 if is_news else self._same_looks + 1

    def attempt_began(self) -> None:
        self._usual.clear()
        self._elapsed = self._norm = self._scale = None
        self._lines = self._same_looks = 0

    def _is_odd(self, line: Iteration) -> bool:
        """Each line is learnt from, also an odd one."""
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
        """A loss that is missing stays odd: Megatron hides NaN that way."""
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
