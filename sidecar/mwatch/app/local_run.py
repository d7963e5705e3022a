# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run`: wrapper, engine and decisions for one command on this machine.

One loop, twice a second: read what is new, look, act if it is due. Each attempt is a wrapper
process of its own, as each is a container on Kubernetes. When only observing, the command runs
as it was given, its exit code is ours, and what would have been done is written down.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mwatch.app import wrapper
from mwatch.app.engine import Assessment
from mwatch.app.interrupts import Interrupted, interrupts
from mwatch.app.next_attempt import NextAttempt
from mwatch.app.printed import Printed
from mwatch.app.run_folder import RunFolder
from mwatch.app.run_view import Ended, View
from mwatch.app.run_watch import RunWatch
from mwatch.decide.policy import GIVE_UP_EXIT_CODE
from mwatch.decide.verdict import verdict
from mwatch.errors import MwatchError
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Cause

_TICK_SECONDS = 0.5
_SETTLE_SECONDS = 1.0
"""After the end of the command: its last lines are read, and what they mean is decided."""
_USER_MENDS = frozenset({Cause.USER_ERROR, Cause.OOM, Cause.DATA})


@dataclass(frozen=True, slots=True)
class Watched:
    """What is to be run."""

    argv: Sequence[str]
    folder: RunFolder
    is_act: bool = False
    grace_seconds: float = 30.0
    """For a last save, where the run is healthy enough to make one."""
    wrapper_options: Sequence[str] = ()
    shows_output: bool = False
    """The trainer's output goes through the view, not straight to our own output."""


class LocalRun:
    def __init__(self, watched: Watched, watch: RunWatch, view: View) -> None:
        self._watched = watched
        self._watch = watch
        self._view = view
        self._next = NextAttempt(watched.folder.volume, watch.engine.job)
        self._wrapper: wrapper.Wrapper | None = None
        self._printed: Printed | None = None
        self._gone_at: float | None = None
        self._stopped_by: Decision | None = None
        self._failed: set[str] = set()

    def run(self) -> Ended:
        """Until the command has ended for good, or a person or the system ends it (Ctrl-C)."""
        with interrupts():
            ended = self._run()
        self._watch.end()
        self._view.ended(ended)
        return ended

    def _run(self) -> Ended:
        try:
            self._watch.begin()
            self._start(None)
            ended = None
            while ended is None:
                began = time.monotonic()
                ended = self._end(self._tick())
                spent = time.monotonic() - began
                if ended is None and spent < _TICK_SECONDS:
                    time.sleep(_TICK_SECONDS - spent)
        except Interrupted as interrupted:
            ended = self._interrupted(interrupted.exit_code)
        finally:
            self._leave()
        return ended

    def _start(self, decision: Decision | None) -> None:
        chosen = self._next.choose(decision)
        self._view.began(chosen.number, chosen.resume_from, chosen.reason)
        self._gone_at = None
        watched = self._watched
        self._show_output()
        self._wrapper = wrapper.start(
            watched.argv,
            watched.folder.volume,
            is_act=watched.is_act,
            options=watched.wrapper_options,
            capture=watched.shows_output,
        )
        if self._wrapper.output is not None:
            self._printed = Printed(self._wrapper.output)

    def _tick(self) -> Assessment | None:
        """None: mwatch itself has failed. Then training goes on, and nothing is done to it."""
        try:
            self._show_output()
            assessment = self._watch.look()
            self._next.known(self._watch.recalled)
            self._consider(assessment.decision)
        except MwatchError:
            raise
        except Exception as error:
            self._fail(error)
            return None
        return assessment

    def _fail(self, error: Exception) -> None:
        """A fault of ours is told once for each place that it comes from."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        if place not in self._failed:
            self._failed.add(place)
            text = f"mwatch failed at {place} ({type(error).__name__}: {error})"
            self._view.noted(f"{text}: please report it; the training goes on, unwatched for now")

    def _consider(self, decision: Decision) -> None:
        if not self._watch.is_due(decision):
            return
        folder = self._watch.keeper.before_the_kill(decision)
        again = self._watch.look_closely().decision
        if (again.action, again.cause) != (decision.action, decision.cause):
            return  # while the evidence was saved, it healed or became something else
        self._carry_out(again, folder)

    def _carry_out(self, decision: Decision, evidence: Path | None) -> None:
        is_act = self._watched.is_act
        self._watch.enacted(decision)
        self._view.acted(decision, is_act, None if evidence is None else str(evidence))
        if not is_act:
            return
        if self._wrapper is not None and self._wrapper.exit_code is None:
            self._wrapper.stop(decision.reason, 0.0)
        self._watch.attempt_ended()
        if decision.action is Action.RESTART:
            self._start(decision)
        else:
            self._stopped_by = decision

    def _end(self, assessment: Assessment | None) -> Ended | None:
        """What the run came to, if the command has ended and nothing is left to be done."""
        if self._stopped_by is not None:
            cause = self._stopped_by.cause
            code = 1 if cause in _USER_MENDS else GIVE_UP_EXIT_CODE
            return Ended(code, self._stopped_by.reason, False)
        code_now = None if self._wrapper is None else self._wrapper.exit_code
        if code_now is None:
            return None
        if assessment is None:
            return Ended(code_now, "the command has ended; mwatch cannot say how", False)
        now = self._watch.clock.now()
        if self._gone_at is None:
            self._gone_at = now
            self._watch.attempt_ended()
            return None
        is_pending = assessment.decision.action is not Action.NONE and self._watched.is_act
        if is_pending or now - self._gone_at < _SETTLE_SECONDS:
            return None
        job = self._watch.engine.job
        if job.attempt.is_done and not code_now:
            return Ended(0, f"training is done, iteration {job.attempt.iteration}", True)
        said = verdict(job, assessment.findings, assessment.decision)
        return Ended(code_now, said.summary, said.cause in (Cause.FINISHED, Cause.HEALTHY))

    def _interrupted(self, exit_code: int) -> Ended:
        if self._wrapper is not None and self._wrapper.exit_code is None:
            self._view.noted("interrupted: ending the run (again: at once)")
            try:
                self._wrapper.stop("interrupted by a person", self._watched.grace_seconds)
            except Interrupted:
                self._wrapper.kill()
        return Ended(exit_code, "interrupted", False)

    def _show_output(self) -> None:
        if self._printed is not None:
            self._view.printed(self._printed.take())

    def _leave(self) -> None:
        """Whatever happened, nothing of ours is left running."""
        if self._wrapper is not None:
            self._wrapper.kill()
        if self._printed is not None:
            self._view.printed(self._printed.rest())
