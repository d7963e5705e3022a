# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Plays a recording to the engine as if it happened now, and keeps what it would have done.

A live watcher looks once a second. Here a look is made at most once a second of the log's time,
where something was said that is worth it (`screen`), and inside a silence at the moment when
the answer changes: found by halving, within a second or a fiftieth of the silence. Nothing is
acted on: the run goes on as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mwatch.engine.engine import Assessment, Engine
from mwatch.model.decision import Action, Decision
from mwatch.model.event import Arguments, Error, Iteration, Phase
from mwatch.model.observation import Observed
from mwatch.model.step_lines import PlacedLines
from mwatch.replay.look_scheduler import LOOK_SECONDS, EvaluationThrottle, UsualGaps
from mwatch.report.recorder import ReportRecorder
from mwatch.state.like_lines import fold_like, is_usual_ground

_SHARE = 0.02
_FEW_LINES = 8
_MANY_LINES = 2048


class Player:
    def __init__(self, engine: Engine, recorder: ReportRecorder | None = None) -> None:
        self.engine = engine
        self.recorder = recorder or ReportRecorder(engine, "replay", has_curves=False)
        self.last: Assessment | None = None
        self.at: float | None = None
        """The newest moment that was played."""
        self.looks = 0
        self._screen = EvaluationThrottle()
        self._looked_at = float("-inf")
        self._is_stale = False
        """Something worth a look was said within a second of the last one."""
        self._due: float | None = None
        """When the decision that stands would be carried out."""
        self._gaps = UsualGaps()
        self._stride = _FEW_LINES
        """Lines that are tried at once: as many as twice those that went well last time."""

    def play(self, recording: Iterable[Observed | PlacedLines]) -> None:
        for received in recording:
            if isinstance(received, PlacedLines):
                self._observe_lines(received)
            else:
                self.observe(received)

    def _observe_lines(self, placed: PlacedLines) -> None:
        """As `observe` of each line; lines without effect are skipped many at a time."""
        events: Sequence[Iteration] = placed.lines.events
        index, size = 0, len(placed.lines)
        while index < size:
            done = self._pass_over(placed, index)
            if done == index:
                if not isinstance(events, list):
                    events = list(events)
                self.observe(Observed(placed.ats[index], placed.stream, events[index]))
                done += 1
            index = done

    def _pass_over(self, placed: PlacedLines, begin: int) -> int:
        """Learns from lines from `begin` on of which nothing comes; returns the first other."""
        if self.at is None or self._is_stale or self._due is not None or self.recorder.has_curves:
            return begin
        job = self.engine.job
        if self.engine.awaits_progress or not is_usual_ground(job, placed, begin):
            return begin
        end = min(begin + self._stride, len(placed.lines))
        gaps, screen, calm = self._foresee(placed, begin, end)
        done = fold_like(job, placed, begin, calm)
        if done < end:
            gaps, screen, _ = self._foresee(placed, begin, done)
        self._stride = min(max(2 * (done - begin), _FEW_LINES), _MANY_LINES)
        if done > begin:
            self._gaps, self._screen = gaps, screen
            self.at = max(self.at, placed.ats[done - 1])
        return done

    def _foresee(
        self, placed: PlacedLines, begin: int, end: int
    ) -> tuple[UsualGaps, EvaluationThrottle, int]:
        """What would be known after the lines up to the first that is worth a look."""
        gaps, screen = self._gaps.copy(), self._screen.copy()
        end = gaps.pass_over(placed.ats, begin, end, self.at or 0.0)
        return gaps, screen, screen.pass_over(placed.lines, begin, end)

    def observe(self, observed: Observed) -> None:
        at, _, what = observed
        was_new = False
        last = at if self.at is None else self.at
        if at > last and (self._is_stale or self._due is not None or at - last > self._gaps.dull):
            was_new = self._pass(last, at)
        if self._is_stale and isinstance(what, Phase | Arguments | Error):
            self._look(self.at or at)  # it may end the attempt: see how that one stood
        job = self.engine.job
        number = job.attempt.number
        self.engine.observe(observed)
        self.at = at if self.at is None or at > self.at else self.at
        if job.attempt.number != number:
            self._attempt_began()
        self.recorder.note(observed)
        if isinstance(what, Iteration):
            self._gaps.learn(at)
            self._is_stale |= was_new or self._screen.wants_line(what)
        else:
            self._is_stale |= was_new or self._screen.wants(what)
        if self._is_stale and self.at - self._looked_at >= LOOK_SECONDS:
            self._look(self.at)

    def finish(self, until: float | None = None) -> Assessment | None:
        """The input has ended. `until`: the run was still up then, and had said nothing more."""
        if self.at is None:
            return None
        if until is not None and until > self.at:
            self._pass(self.at, until)
            self.at = until
        assessment = self._look(self.at)
        if until is None:
            self._settle(assessment.decision)
        return self.last

    def _settle(self, decision: Decision) -> None:
        """A death is acted on after a wait, in which the log says no more."""
        waits = decision.act_at is not None and decision.action is not Action.NONE
        if waits and self.engine.record.of_attempt(decision.attempt) is None:
            self._enact(decision, max(decision.act_at or 0.0, self.engine.job.now))

    def _attempt_began(self) -> None:
        self._screen.attempt_began()
        self._gaps = UsualGaps()
        self._due = None

    def _pass(self, start: float, end: float) -> bool:
        """From `start` to `end` nothing was said; returns whether that itself was news."""
        if self._is_stale and end - self._looked_at >= LOOK_SECONDS:
            self._look(min(end, max(start, self._looked_at + LOOK_SECONDS)))
        if self._due is not None:
            self._act_within(end)
        if end - start <= self._gaps.dull:
            return False
        was_new = False
        begun = max(start, self._looked_at)
        while end - begun > LOOK_SECONDS and self._differs(end):
            begun = self._first_change(start, begun, end)
            self._look(begun)
            self._act_within(end)
            was_new = True
        return was_new

    def _act_within(self, end: float) -> None:
        if self._due is not None and self._due <= end:
            self._look(max(self._due, self._looked_at))

    def _first_change(self, start: float, low: float, high: float) -> float:
        while high - low > max(LOOK_SECONDS, _SHARE * (low - start)):
            middle = (low + high) / 2
            if self._differs(middle):
                high = middle
            else:
                low = middle
        return high

    def _differs(self, at: float) -> bool:
        """Whether a look at `at` would say something new; changes nothing."""
        return self.last is None or _gist(self.engine.preview(at)) != _gist(self.last)

    def _look(self, at: float) -> Assessment:
        assessment = self.engine.evaluate(at)
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
    """What makes an answer another one: who found what, and what is to be done."""
    found = {(each.detector, each.cause, each.severity) for each in assessment.findings}
    decision = assessment.decision
    return (frozenset(found), decision.action, decision.cause, decision.attempt)
