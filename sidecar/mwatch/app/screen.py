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

from mwatch.model.event import Event, Fault, Iteration, Overflow, Straggler, Timers
from mwatch.model.fault import Role
from mwatch.model.observation import Observation

_SHARE = 0.02
_FEWEST = 8
_PATIENCE = 64
_MEMORY = 0.01  # how fast what is usual follows: slower than any detector makes up its mind
_HIGHER = 0.1  # share by which a loss is above what is usual
_STEEPER = 2.5
_SLOWER = 1.15
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
            if usual is not None and -math.inf < elapsed <= _SLOWER * usual:
                self._elapsed = usual + _MEMORY * (elapsed - usual)
            else:
                odd |= usual is not None
                self._elapsed = _follow(usual, elapsed)
        if norm is not None or self._norm is not None:
            usual = self._norm
            if usual is not None and norm is not None and -math.inf < norm <= _STEEPER * usual:
                self._norm = usual + _MEMORY * (norm - usual)
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
                odd |= loss > usual + _HIGHER * abs(usual)
                known[name] = usual + _MEMORY * (loss - usual)
        return odd


def _follow(usual: float | None, value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return usual
    return value if usual is None else usual + _MEMORY * (value - usual)
