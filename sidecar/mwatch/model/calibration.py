# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How long phases and steps take in this job, learnt from the job itself.

Kept as JSON beside the checkpoints, per layout, with a few dozen newest durations of each kind. A
deadline is a robust quantile times a factor, between a floor and a ceiling; without data it is a
documented default. If a job is slow from the beginning, that speed is taken as usual.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress

from mwatch.model.phase import DeadlineSlot
from mwatch.model.settings import DeadlineSettings, Settings, SlowSettings
from mwatch.stats import MAD_TO_SIGMA, median

_LOWEST, _HIGHEST = -math.inf, math.inf


class Sample:
    __slots__ = ("_newest", "_ordered", "maxlen")

    def __init__(self, maxlen: int, values: Iterable[float] = ()) -> None:
        self.maxlen = maxlen
        self._newest: deque[float] = deque(maxlen=maxlen)
        self._ordered: list[float] | None = None
        """The sorted values; None: values were added since the last sort."""
        self.extend(values)

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[float]:
        """Oldest first."""
        return iter(self._newest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sample) and self._newest == other._newest

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Sample({self.maxlen}, {list(self._newest)})"

    @property
    def is_full(self) -> bool:
        return len(self._newest) == self.maxlen

    def append(self, value: float) -> None:
        if _LOWEST < value < _HIGHEST:
            self._newest.append(value)
            self._ordered = None

    def extend(self, values: Iterable[float]) -> None:
        given = list(values)
        newest = given[-self.maxlen :]
        if not math.isfinite(sum(newest)):
            newest = [value for value in given if _LOWEST < value < _HIGHEST]
        self._newest.extend(newest)
        self._ordered = None

    def clear(self) -> None:
        self._newest.clear()
        self._ordered = None

    def scale(self, factor: float) -> None:
        values = [value * factor for value in self._newest]
        self.clear()
        self.extend(values)

    def quantile(self, share: float) -> float | None:
        """Return a quantile, linearly interpolated; None for an empty sample."""
        return self._at(share * (len(self._newest) - 1))

    def median(self) -> float | None:
        return self.quantile(0.5)

    def spread(self) -> float:
        """Return the median absolute deviation, scaled to a standard deviation; 0 if empty."""
        middle = self.median()
        if middle is None or self._ordered is None:
            return 0.0
        return MAD_TO_SIGMA * median([abs(value - middle) for value in self._ordered])

    def quantile_without_outliers(self, share: float, outliers: int) -> float | None:
        """Return a quantile without the largest `outliers` values, at most a tenth of all."""
        last = len(self._newest) - 1
        return self._at(min(share * last, last - min(outliers, len(self._newest) // 10)))

    def _at(self, place: float) -> float | None:
        if not self._newest:
            return None
        ordered = self._ordered
        if ordered is None:
            ordered = self._ordered = sorted(self._newest)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


MAX_DURATIONS = 64
MAX_STEPS = 512
MAX_RECENT = 64
MAX_SHAPES = 8  # layouts that are kept: an elastic job returns to earlier sizes
_FEW_LINES = 3  # enough if each is the mean of many steps
_MANY_ITERATIONS = 100
_SOME_LINES = 8
_UPDATE_LINES = 16  # from here on only every so many lines: computing the spread is expensive
_SLOW_RATIO = SlowSettings().ratio
ALIKE = 1.04
"""Steps up to this many times the shortest are alike: the excess is less than any slow one."""
_SIGMAS = 4.0
_MAX_SECONDS = 30 * 86400.0
_OUTLIERS = 3  # an occasional storage stall must not stretch the deadline for hours


def _durations() -> dict[DeadlineSlot, Sample]:
    return {slot: Sample(MAX_DURATIONS) for slot in DeadlineSlot}


@dataclass(slots=True)
class Calibration:
    key: str = ""
    durations: dict[DeadlineSlot, Sample] = field(default_factory=_durations)
    """Seconds of each finished phase; TRAINING: seconds between iteration lines."""
    steps: Sample = field(default_factory=lambda: Sample(MAX_STEPS))
    """Seconds of one step, one value per line, without the first step of a process."""
    rises: Sample = field(default_factory=lambda: Sample(MAX_STEPS))
    """Seconds between two iterations, by the probe: a line of 100 steps hides its slowest one."""
    recomputed: Sample = field(default_factory=lambda: Sample(MAX_DURATIONS))
    """Seconds that each resume spent on repeated iterations."""
    recent: Sample = field(default_factory=lambda: Sample(MAX_RECENT))
    """Seconds of steps at the current batch size, without slow ones: lasting slowness must not
    become the usual speed."""
    recent_iterations: int = 0  # covered by the recent and earlier lines
    _recent_lines: int = 0
    best_step: float | None = None  # median of `recent`; None: too few
    best_spread: float = 0.0
    batch_size: int | None = None  # that the learnt times are for
    log_interval: int | None = None
    seen: tuple[object, ...] = ()  # what had happened by the last line; not stored
    disturbed: int = 0  # lines in a row with a save or an evaluation inside; not stored
    others: dict[str, Calibration] = field(default_factory=dict)  # by layout key, newest last

    def learn(self, slot: DeadlineSlot, seconds: float) -> None:
        if 0 <= seconds <= _MAX_SECONDS:
            self.durations[slot].append(seconds)

    def learn_step(self, seconds: float, iterations: int = 1) -> None:
        if not 0 < seconds <= _MAX_SECONDS:
            return
        self.steps.append(seconds)
        if self.best_step is not None and seconds > self.slow_above(self.best_step):
            return
        recent = self.recent
        recent.append(seconds)
        self.recent_iterations += iterations
        self._recent_lines += 1
        lines = len(recent)
        if lines >= _UPDATE_LINES and self._recent_lines % _UPDATE_LINES:
            return
        is_enough = lines >= _FEW_LINES and self.recent_iterations >= _MANY_ITERATIONS
        if is_enough or lines >= _SOME_LINES:
            self.best_step, self.best_spread = recent.median(), recent.spread()

    @property
    def lines_until_update(self) -> int:
        """How many lines can be learnt before one that may change `best_step`."""
        is_settled = len(self.recent) >= _UPDATE_LINES
        return _UPDATE_LINES - 1 - self._recent_lines % _UPDATE_LINES if is_settled else 0

    def are_alike(self, seconds: Sequence[float]) -> bool:
        """Whether these lines and the recent ones are so similar that none of them is slow compared
        with the usual step, before or after any of them is learnt."""
        if self.best_step is None or len(self.recent) < _UPDATE_LINES or not seconds:
            return False
        known = [self.best_step, *self.recent, min(seconds), max(seconds)]
        low, high = min(known), max(known)
        is_number = math.isfinite(sum(seconds))  # min() and max() pass over a NaN
        return is_number and low > 0 and high <= min(low * ALIKE, _MAX_SECONDS)

    def learn_steps(
        self, seconds: Sequence[float], iterations: Sequence[int], *, is_alike: bool = False
    ) -> None:
        """Do the same as `learn_step` for each line. `is_alike`: `are_alike` is known to hold."""
        if len(seconds) <= self.lines_until_update:
            self._learn_few(seconds, iterations)
        elif is_alike or self.are_alike(seconds):
            self._learn_alike(seconds, iterations)
        else:
            for each, count in zip(seconds, iterations, strict=True):
                self.learn_step(each, count)

    def _learn_few(self, seconds: Sequence[float], iterations: Sequence[int]) -> None:
        """Learn lines too few to update `best_step`."""
        self.steps.extend([each for each in seconds if 0 < each <= _MAX_SECONDS])
        best = self.best_step
        limit = min(_MAX_SECONDS, math.inf if best is None else self.slow_above(best))
        usual = [0 < each <= limit for each in seconds]
        self.recent.extend(compress(seconds, usual))
        self.recent_iterations += sum(compress(iterations, usual))
        self._recent_lines += sum(usual)

    def _learn_alike(self, seconds: Sequence[float], iterations: Sequence[int]) -> None:
        """Learn lines that are all usual, so only the last update of `best_step` matters."""
        before, self._recent_lines = self._recent_lines, self._recent_lines + len(seconds)
        updated = self._recent_lines // _UPDATE_LINES * _UPDATE_LINES - before
        self.steps.extend(seconds)
        self.recent.extend(seconds[max(0, updated - MAX_RECENT) : updated])
        self.best_step, self.best_spread = self.recent.median(), self.recent.spread()
        self.recent.extend(seconds[updated:])
        self.recent_iterations += sum(iterations)

    def learn_longer(
        self, slot: DeadlineSlot, seconds: Sequence[float], others: Sequence[float]
    ) -> None:
        """Do the same as `learn` for the larger value of each pair."""
        newest = list(map(max, seconds[-MAX_DURATIONS:], others[-MAX_DURATIONS:]))
        if not all(0 <= each <= _MAX_SECONDS for each in newest):
            newest = [each for each in map(max, seconds, others) if 0 <= each <= _MAX_SECONDS]
        self.durations[slot].extend(newest)

    def slow_above(self, usual: float) -> float:
        """Return the seconds above which a step is slow; less may be chance."""
        return max(_SLOW_RATIO * usual, usual + _SIGMAS * self.best_spread)

    def step_median(self) -> float | None:
        return self.steps.median()

    def usual_step(self) -> float | None:
        """Return the seconds of one step at the current batch size; None: unknown."""
        return self.best_step or self.recent.median() or self.steps.median()

    def step_p99(self) -> float | None:
        known = (
            self.steps.quantile_without_outliers(0.99, _OUTLIERS),
            self.rises.quantile_without_outliers(0.99, _OUTLIERS),
        )
        return max((each for each in known if each is not None), default=None)

    def deadline(self, slot: DeadlineSlot, settings: Settings) -> float:
        """Return the seconds after which this phase counts as stalled."""
        rule: DeadlineSettings = settings.deadlines.of(slot)
        seen = self.durations[slot].quantile(settings.deadlines.quantile)
        if seen is None:
            return rule.default_seconds
        return min(max(seen * rule.factor, rule.floor_seconds), rule.ceiling_seconds)

    def restart_cost(self, settings: Settings) -> float:
        """Return the seconds that a restart costs: start, load, first step, recomputed steps.

        A job without a first step so far uses the default as the minimum.
        """
        slots = (DeadlineSlot.LOADING, DeadlineSlot.FIRST_STEP)
        cost = sum(self.durations[slot].median() or 0.0 for slot in slots)
        cost += self._start_seconds() + (self.recomputed.median() or 0.0)
        if not self.durations[DeadlineSlot.FIRST_STEP]:
            return max(cost, settings.act.default_restart_cost_seconds)
        return max(cost, settings.act.min_restart_cost_seconds)

    def _start_seconds(self) -> float:
        """Return the usual seconds of a start.

        A start with a load has two parts, before and after it, which were learnt separately.
        """
        parts = self.durations[DeadlineSlot.STARTING]
        starts = len(self.durations[DeadlineSlot.FIRST_STEP])
        each = round(len(parts) / starts) if starts else 1
        return max(1, each) * (parts.median() or 0.0)

    def resize_batch(self, batch_size: int) -> None:
        """Scale the times up for a larger batch; for a smaller one they are learnt again."""
        if self.batch_size is not None and batch_size != self.batch_size:
            growth = max(1.0, batch_size / self.batch_size)
            for sample in (self.steps, self.rises, self.durations[DeadlineSlot.TRAINING]):
                sample.scale(growth)
            self.recent.clear()
            self.recent_iterations = self._recent_lines = 0
            self.best_step = None
        self.batch_size = batch_size

    def space_lines(self, log_interval: int) -> None:
        if self.log_interval is not None and log_interval != self.log_interval:
            self.durations[DeadlineSlot.TRAINING].scale(log_interval / self.log_interval)
        self.log_interval = log_interval

    def in_layout(self, key: str) -> Calibration:
        """Return the calibration of a layout.

        A key that only adds detail (`tp=?`, then `tp=2`) is of the same layout.
        """
        if not self.key or key == self.key or _says_more(key, self.key):
            self.key = key
            self.others.pop(key, None)
            return self
        others, self.others = self.others, {}
        found = others.pop(key, None) or Calibration(key)
        others[self.key] = self
        while len(others) >= MAX_SHAPES:
            del others[next(iter(others))]
        found.others = others
        return found


def _says_more(key: str, before: str) -> bool:
    parts, known = key.split(), before.split()
    return len(parts) == len(known) and all(
        old == new or (old.endswith("=?") and new.startswith(old[:-1]))
        for new, old in zip(parts, known, strict=True)
    )


def is_duration(value: object) -> bool:
    """Whether a stored value is a plausible number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value <= _MAX_SECONDS
