# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Feed a recording to the engine as if it happened now, and record what mwatch would have done.

A live watcher assesses the run once a second. A replay assesses it at most once per second of log
time, after lines that require it (`replay.look_scheduler`), and within a silence at the moment when
the result changes, found by bisection to within a second or a fiftieth of the silence. No action is
carried out: the run continues as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from mwatch.engine.engine import Assessment, Engine
from mwatch.model.decision import Action, Decision
from mwatch.model.event import (
    Arguments,
    Error,
    Iteration,
    Phase,
)
from mwatch.model.finding import Finding
from mwatch.model.observation import Observed
from mwatch.model.step import PlacedLines
from mwatch.replay.log_end import LogEnd
from mwatch.replay.look_scheduler import MANY_LINES, EvaluationThrottle
from mwatch.replay.timestamps import LOOK_SECONDS, UsualGaps
from mwatch.report.recorder import ReportRecorder
from mwatch.state.steps import fold_like, is_usual_ground

_SHARE_OF_SILENCE = 0.02
_FEW_LINES = 8
_NO_LINES: Mapping[str, int] = MappingProxyType({})


class Player:
    def __init__(self, engine: Engine, recorder: ReportRecorder | None = None) -> None:
        self.engine = engine
        self.recorder = recorder or ReportRecorder(engine, "replay", has_curves=False)
        self.last: Assessment | None = None
        self.at: float | None = None
        """The newest time played so far."""
        self.looks = 0
        self._screen = EvaluationThrottle()
        self._looked_at = float("-inf")
        self._is_stale = False
        """A line that needs an assessment came within a second of the last assessment."""
        self._due: float | None = None
        """When the current decision would be carried out."""
        self._gaps = UsualGaps()
        self.log_end = LogEnd()
        self._stride = _FEW_LINES
        """Lines to try at once: twice as many as passed last time, at least half the last try."""

    def play(self, recording: Iterable[Observed | PlacedLines]) -> None:
        for received in recording:
            if isinstance(received, PlacedLines):
                self._observe_lines(received)
            else:
                self.observe(received)

    def _observe_lines(self, placed: PlacedLines) -> None:
        """Like `observe` for each line, but skip many lines without effect at a time."""
        index = 0
        while index < len(placed.lines):
            done = self._pass_over(placed, index)
            if done == index:
                line = placed.lines.event(index)
                self.observe(Observed(placed.ats[index], placed.stream, line))
                done += 1
            index = done

    def _pass_over(self, placed: PlacedLines, begin: int) -> int:
        """Learn from lines without effect starting at `begin`; return the index after them."""
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
        self._stride = min(max(2 * passed, self._stride // 2, _FEW_LINES), MANY_LINES)
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
        may_end = isinstance(what, Phase | Arguments) or (
            isinstance(what, Error) and what.kind not in ("traceback", "exception")
        )
        if may_end and (self._is_stale or self._screen.has_new_errors):
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
        """Process the end of the input.

        `until`: the run was still up then, but silent. `lines`: number of lines by file. `proved`:
        the last time printed in any line; lines without progress also prove a silence. `tails`: the
        ends of the files.
        """
        if self.at is None:
            return
        end = max((each for each in (until, proved) if each is not None), default=self.at)
        if end > self.at:
            self._pass(self.at, end)
            self.at = end
        self.log_end.forget_harmless(self.engine.job.attempt, lines, tails)
        assessment = self._look(self.at)
        if until is None:
            fault = self.log_end.fault(self.engine, assessment, lines)
            assessment = self._look(self.at, (fault,)) if fault else assessment
            self._settle(assessment.decision)

    def _settle(self, decision: Decision) -> None:
        """Record the action on an exit: the log ends before the wait after the exit is over."""
        waits = decision.act_at is not None and decision.action is not Action.NONE
        if waits and self.engine.record.of_attempt(decision.attempt) is None:
            self._enact(decision, max(decision.act_at or 0.0, self.engine.job.now))

    def _attempt_began(self) -> None:
        self._screen.attempt_began()
        self._gaps = UsualGaps()
        self._due = None

    def _pass(self, start: float, end: float) -> bool:
        """Process a silence; return whether it changed the assessment."""
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
    """Return what assessments are compared by: findings and decision."""
    found = {(each.detector, each.cause, each.severity) for each in assessment.findings}
    decision = assessment.decision
    return (frozenset(found), decision.action, decision.cause, decision.attempt)
