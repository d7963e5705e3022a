# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Plays a recording to the engine as if it happened now, and records what mwatch would have done.

A live watcher assesses the run once a second. Here an assessment is made at most once a second of
the log's time, after lines that are worth it, and inside a silence at the moment when the result
changes: found by bisection, within a second or a fiftieth of the silence. Nothing is acted on: the
run goes on as recorded.

A plain iteration line resembles those before it, so that no detector can find anything new in it;
every other line is worth an assessment. What builds up over many plain lines is found at the next
assessment, at the latest after a fiftieth of the lines of the attempt. `calm_*` functions go over
columns of numbers: each stops before the first value that is not near the usual one, which follows
slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import le, mul
from types import MappingProxyType

from mwatch.engine.engine import Assessment, Engine
from mwatch.model.decision import Action, Decision
from mwatch.model.event import (
    Arguments,
    Error,
    Event,
    Iteration,
    Overflow,
    Phase,
    StepLines,
    Straggler,
    Timers,
)
from mwatch.model.fault import Role
from mwatch.model.finding import Finding
from mwatch.model.observation import Observation, Observed
from mwatch.model.step import PlacedLines
from mwatch.replay.log_end import LogEnd
from mwatch.replay.timestamps import LOOK_SECONDS, UsualGaps
from mwatch.report.recorder import ReportRecorder
from mwatch.state.steps import fold_like, is_usual_ground

MEMORY = 0.01  # how fast the usual value follows: slower than any detector decides
HIGHER = 0.1  # share by which a loss may exceed the usual one
STEEPER = 2.5
SLOWER = 1.15
Values = Sequence[float]
Calm = Callable[[Values, float, int, int], tuple[int, float]]
"""Of values, the usual one, begin and end: where it stopped, and the usual value by then."""


_FEWEST_TOGETHER = 32
_MANY_LINES = 2048
_WEIGHTS = [MEMORY * (1 - MEMORY) ** age for age in reversed(range(_MANY_LINES))]
"""In the usual value, of the values that it was learnt from: the newest one has most."""


def _calm(is_calm: Callable[[float, float], bool]) -> Calm:
    """`is_calm`: of a value and the usual one; true for every smaller value, too."""

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
    """The usual value after all of these, if even the largest is calm beside the least that the
    usual one can come to; None: unknown."""
    kept, lowest = (1 - MEMORY) ** len(values), min(values)
    least = usual if lowest >= usual else lowest + kept * (usual - lowest)
    if len(values) > _MANY_LINES or not is_calm(max(values), least):
        return None
    known = kept * usual + sum(map(mul, values, _WEIGHTS[-len(values) :]))
    return known if math.isfinite(known) else None


calm_times = _calm(lambda value, usual: value <= SLOWER * usual)
calm_norms = _calm(lambda value, usual: value <= STEEPER * usual)
calm_losses = _calm(lambda value, usual: value <= usual + HIGHER * abs(usual))


def calm_scales(values: Values, last: float, begin: int, end: int) -> tuple[int, float]:
    """A loss scale must not fall; the usual one is the last."""
    part = values[begin:end]
    if all(map(le, (last, *part), part)):
        return end, part[-1] if part else last
    for index, value in enumerate(part, begin):
        if value < last:
            return index, last
        last = value
    return end, last


def calm_counts(values: Values, _: float, begin: int, end: int) -> tuple[int, float]:
    """Counts must be zero."""
    if not any(values[begin:end]):
        return end, 0.0
    return next(index for index in range(begin, end) if values[index]), 0.0


def pass_calm(
    columns: Sequence[tuple[Calm, Values, float]], begin: int, end: int
) -> tuple[int, list[float]]:
    """Stop before the first line in which any column is not calm."""
    found: list[tuple[int, float]] = []
    stop = end
    for calm, values, usual in columns:
        found.append(calm(values, usual, begin, stop))
        stop = found[-1][0]
    return stop, [
        known if at == stop else calm(values, usual, begin, stop)[1]
        for (at, known), (calm, values, usual) in zip(found, columns, strict=True)
    ]


_SHARE_OF_LINES = 0.02
_FEWEST = 8
_PATIENCE = 64
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

    def wants(self, what: Event | Observation) -> bool:
        """Whether to assess the run after this observation."""
        if isinstance(what, Iteration):
            return self.wants_line(what)
        if isinstance(what, Error):
            return what.kind != "exception"  # it proves no end
        return type(what) not in _SILENT and getattr(what, "role", None) != Role.BENIGN

    def wants_line(self, line: Iteration) -> bool:
        self._lines += 1
        self._since_look += 1
        if self._is_odd(line):
            self._odd_since_look += 1
            return self._odd_since_look > self._same_looks // _PATIENCE
        return self._since_look > _FEWEST and self._since_look > _SHARE_OF_LINES * self._lines

    def copy(self) -> EvaluationThrottle:
        other = EvaluationThrottle()
        vars(other).update(vars(self), _usual=dict(self._usual))
        return other

    def pass_over(self, lines: StepLines, begin: int, end: int) -> int:
        """Learn from lines from `begin` on, as `wants_line` does, and stop before the first that
        it wants."""
        while begin < end:
            due = min(end, begin + self._lines_until_due())
            calm = self._pass_calm(lines, begin, due)
            if calm == due or self._odd_since_look + 1 > self._same_looks // _PATIENCE:
                return calm
            self.wants_line(lines.event(calm))  # odd, but assessed often enough
            begin = calm + 1
        return end

    def _lines_until_due(self) -> int:
        """How many plain lines may still come before one is looked at for its number alone."""
        since, lines = self._since_look, self._lines
        share = _SHARE_OF_LINES
        count = max(_FEWEST - since, int((share * lines - since) / (1 - share)) - 2, 0)
        while since + count + 1 <= max(_FEWEST, share * (lines + count + 1)):
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
        """The columns to check, with their usual values; None: these lines are of a new kind."""
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
        """Assessments that bring nothing new become less and less frequent."""
        self._since_look = self._odd_since_look = 0
        self._same_looks = 0 if is_new else self._same_looks + 1

    def attempt_began(self) -> None:
        self._usual.clear()
        self._elapsed = self._norm = self._scale = None
        self._lines = self._same_looks = 0

    def _is_odd(self, line: Iteration) -> bool:
        """Learn from each line, even from an odd one."""
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
        """A missing loss stays odd: Megatron hides NaN that way."""
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


_SHARE_OF_SILENCE = 0.02
_FEW_LINES = 8
_NO_LINES: Mapping[str, int] = MappingProxyType({})


class Player:
    def __init__(self, engine: Engine, recorder: ReportRecorder | None = None) -> None:
        self.engine = engine
        self.recorder = recorder or ReportRecorder(engine, "replay", has_curves=False)
        self.last: Assessment | None = None
        self.at: float | None = None
        """The newest time that was played."""
        self.looks = 0
        self._screen = EvaluationThrottle()
        self._looked_at = float("-inf")
        self._is_stale = False
        """A line worth an assessment came within a second of the last one."""
        self._due: float | None = None
        """When the current decision would be carried out."""
        self._gaps = UsualGaps()
        self.log_end = LogEnd()
        self._stride = _FEW_LINES
        """Lines to try at once: twice as many as were passed last time, or half of that try."""

    def play(self, recording: Iterable[Observed | PlacedLines]) -> None:
        for received in recording:
            if isinstance(received, PlacedLines):
                self._observe_lines(received)
            else:
                self.observe(received)

    def _observe_lines(self, placed: PlacedLines) -> None:
        """Like `observe` of each line, but skip many lines without effect at a time."""
        index = 0
        while index < len(placed.lines):
            done = self._pass_over(placed, index)
            if done == index:
                line = placed.lines.event(index)
                self.observe(Observed(placed.ats[index], placed.stream, line))
                done += 1
            index = done

    def _pass_over(self, placed: PlacedLines, begin: int) -> int:
        """Learn from lines without effect from `begin` on; return the index of the next one."""
        if self.at is None or self._is_stale or self._due is not None:
            return begin
        end = min(begin + self._stride, placed.lines.first_bad(begin))
        job = self.engine.job
        if end == begin or self.engine.awaits_progress or not is_usual_ground(job, placed, begin):
            return begin
        screen, gaps = self._screen.copy(), self._gaps.copy()
        calm = screen.pass_over(placed.lines, begin, end)
        near = gaps.pass_over(placed, begin, calm, self.at)
        done = fold_like(job, placed, begin, near)
        if done < calm:  # learn again, from these lines alone
            screen = self._screen.copy()
            screen.pass_over(placed.lines, begin, done)
        if done < near:
            gaps = self._gaps.copy()
            gaps.pass_over(placed, begin, done, self.at)
        passed = self._stride if done == end else done - begin
        self._stride = min(max(2 * passed, self._stride // 2, _FEW_LINES), _MANY_LINES)
        if done > begin:
            self._gaps, self._screen = gaps, screen
            self.at = max(self.at, placed.ats[done - 1])
            self.recorder.stepped(placed, begin, done)
        return done

    def observe(self, observed: Observed) -> None:
        at, _, what = observed
        has_changed = False
        last = at if self.at is None else self.at
        if at > last and (self._is_stale or self._due is not None or at - last > self._gaps.dull):
            has_changed = self._pass(last, at)
        if self._is_stale and isinstance(what, Phase | Arguments | Error):
            self._look(self.at or at)  # it may end the attempt: assess that one first
        job = self.engine.job
        number = job.attempt.number
        self.engine.observe(observed)
        self.at = at if self.at is None or at > self.at else self.at
        if job.attempt.number != number:
            self._attempt_began()
        self.recorder.note(observed)
        self.log_end.note(what)
        if isinstance(what, Iteration):
            self._gaps.learn(at)
            self._is_stale |= has_changed or self._screen.wants_line(what)
        else:
            self._is_stale |= has_changed or self._screen.wants(what)
        if self._is_stale and self.at - self._looked_at >= LOOK_SECONDS:
            self._look(self.at)

    def finish(
        self,
        until: float | None = None,
        lines: Mapping[str, int] = _NO_LINES,
        *,
        proved: float | None = None,
        tails: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """End of the input. `until`: the run was still up then, but silent. `lines`: how many, by
        file. `proved`: the last time that a line prints; lines that show no progress prove a
        silence, too. `tails`: the ends of the files."""
        if self.at is None:
            return
        end = max((each for each in (until, proved) if each is not None), default=self.at)
        if end > self.at:
            self._pass(self.at, end)
            self.at = end
        self.log_end.forget_harmless(self.engine.job.attempt, lines, tails)
        assessment = self._look(self.at)
        if until is None:
            fault = self.log_end.fault(self.engine, assessment, lines, tails)
            assessment = self._look(self.at, (fault,)) if fault else assessment
            self._settle(assessment.decision)

    def _settle(self, decision: Decision) -> None:
        """Act on an exit: the log ends before the wait that follows it."""
        waits = decision.act_at is not None and decision.action is not Action.NONE
        if waits and self.engine.record.of_attempt(decision.attempt) is None:
            self._enact(decision, max(decision.act_at or 0.0, self.engine.job.now))

    def _attempt_began(self) -> None:
        self._screen.attempt_began()
        self._gaps = UsualGaps()
        self._due = None

    def _pass(self, start: float, end: float) -> bool:
        """Pass a silence; return whether it changed the assessment."""
        if self._is_stale and end - self._looked_at >= LOOK_SECONDS:
            self._look(min(end, max(start, self._looked_at + LOOK_SECONDS)))
        if self._due is not None:
            self._act_within(end)
        if end - start <= self._gaps.dull:
            return False
        has_changed = False
        begun = max(start, self._looked_at)
        while end - begun > LOOK_SECONDS and self._differs(end):
            begun = self._first_change(start, begun, end)
            self._look(begun)
            self._act_within(end)
            has_changed = True
        return has_changed

    def _act_within(self, end: float) -> None:
        if self._due is not None and self._due <= end:
            self._look(max(self._due, self._looked_at))

    def _first_change(self, start: float, low: float, high: float) -> float:
        while high - low > max(LOOK_SECONDS, _SHARE_OF_SILENCE * (low - start)):
            middle = (low + high) / 2
            if self._differs(middle):
                high = middle
            else:
                low = middle
        return high

    def _differs(self, at: float) -> bool:
        """Whether an assessment at `at` would differ; changes nothing."""
        return self.last is None or _gist(self.engine.preview(at)) != _gist(self.last)

    def _look(self, at: float, besides: Sequence[Finding] = ()) -> Assessment:
        assessment = self.engine.evaluate(at, besides)
        is_new = self.last is None or _gist(assessment) != _gist(self.last)
        self.last = assessment
        self.looks += 1
        self._looked_at = max(self._looked_at, at)
        self._is_stale = False
        self._screen.looked(is_new=is_new)
        self.recorder.assessed(assessment)
        self._consider(assessment.decision)
        return assessment

    def _consider(self, decision: Decision) -> None:
        self._due = None
        if decision.action is Action.NONE:
            return
        if self.engine.record.of_attempt(decision.attempt) is not None:
            return
        if decision.act_at is None or decision.act_at <= self.engine.job.now:
            self._enact(decision, self.engine.job.now)
        else:
            self._due = decision.act_at

    def _enact(self, decision: Decision, at: float) -> None:
        self.engine.record_action(decision, at, is_carried_out=False)
        self.recorder.enacted(decision, at)


def _gist(assessment: Assessment) -> tuple[object, ...]:
    """What two assessments are compared by: findings and decision."""
    found = {(each.detector, each.cause, each.severity) for each in assessment.findings}
    decision = assessment.decision
    return (frozenset(found), decision.action, decision.cause, decision.attempt)
