# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run`: watches one command on this machine and, with --act, restarts it.

One loop, twice a second: read what is new, assess it, act if an action is due. Each attempt has its
own wrapper process, as it has its own container on Kubernetes. Without --act the command runs as
given, mwatch exits with its exit code, and the actions that --act would have taken are recorded. An
internal error of mwatch is reported; the command continues.

Before a restart, the orders for the wrapper are written to `decision.json`. The first start needs
none: the wrapper continues the attempt count that it finds beside the checkpoints and leaves the
arguments unchanged. Rollbacks are part of the orders, because only the wrapper writes beside the
checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from mwatch.decide.policy import GIVE_UP_EXIT_CODE
from mwatch.decide.verdict import verdict
from mwatch.engine.engine import Assessment
from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.job import Job
from mwatch.model.snapshot.pod import TrainerEnd as WrapperEnd
from mwatch.model.timeline import Rollback
from mwatch.run import process
from mwatch.run.folder import RunFolder
from mwatch.run.process import OutputBuffer, TrainerOutput
from mwatch.run.unattended import UnattendedRun, adopt_wrapper
from mwatch.runtime.clock import Clock
from mwatch.runtime.self_monitoring import InternalErrors
from mwatch.runtime.shutdown import BlockedMainThread, Interrupted, Interrupts, interrupts
from mwatch.watch.watcher import RunEnd, RunObserver, RunWatcher
from mwatch_trainer import contract


class NextAttempt:
    """Writes the orders for the wrapper of the next attempt."""

    def __init__(self, volume: Path, job: Job, clock: Clock) -> None:
        self._volume = volume
        self._job = job
        self._clock = clock
        self._known: set[Rollback] = set()
        self._times: dict[Rollback, float] = {}

    def known(self, rollbacks: list[Rollback]) -> None:
        """Note rollbacks that are already written beside the checkpoints."""
        self._known.update(rollbacks)

    def order(self, decision: Decision) -> None:
        """Write the orders; raise InputError if that fails: then nothing must be started."""
        number = max(self._job.attempt.number, self._job.timeline.attempt) + 1
        path = self._volume / contract.DECISION
        try:
            contract.write_json(str(path), self._document(number, decision))
        except OSError as error:
            problem = error.strerror or error
            raise InputError(f"cannot write {path}: {problem}; free some space") from error
        for name in (contract.NODE_PROCESSES, contract.NODE_GPUS):  # of the last attempt
            with suppress(OSError):
                os.unlink(self._volume / contract.NODE_FOLDER / name)

    def _document(self, number: int, decision: Decision) -> dict[str, Any]:
        timeline = self._job.timeline
        new = [each for each in timeline.rollbacks if each not in self._known]
        is_forbidden = decision.quarantine_from is not None
        return {
            "attempt": number,
            "resume_from": decision.resume_from,
            "from_beginning": decision.resume_from is None and is_forbidden,
            "not_before": None,
            "reason": decision.resume_reason or decision.reason,
            "rollbacks": [{**structs.asdict(each), "at": self._wall(each)} for each in new],
            "quarantine": msgspec.to_builtins(timeline.quarantine),
        }

    def _wall(self, rollback: Rollback) -> float:
        """Return the time of a rollback on the wall clock, which dates the checkpoints and may have
        been set forward since mwatch started: an abandoned checkpoint must not look newer than its
        rollback. The result for a rollback never changes."""
        ahead = max(0.0, self._clock.drift())
        return self._times.setdefault(rollback, rollback.at + (ahead if ahead > 1.0 else 0.0))


FENCED, NOT_AGREED, EARLY_EXIT = 203, 202, 200
_FINAL_CODES = frozenset({FENCED, GIVE_UP_EXIT_CODE})
_USER_FIXES = frozenset({Cause.USER_ERROR, Cause.OOM, Cause.DATA})
_FINISHED = "training finished"
"""The text that `mwatch_trainer.exits.explain` returns."""


def finished(wrapper: WrapperEnd | None) -> str | None:
    """Return how the command finished; None if it failed, or if that is unknown."""
    if wrapper is None or wrapper.code != 0 or not wrapper.reason:
        return None
    is_good = wrapper.reason.startswith((_FINISHED, contract.TRAINS_ON))
    is_end = is_good or (wrapper.asked and wrapper.returned == 0)
    return wrapper.reason if is_end else None


def unstarted(wrapper: WrapperEnd | None) -> str | None:
    """Return why the command was never started; None if it was."""
    is_unstarted = wrapper is not None and wrapper.code is None and wrapper.signal is None
    return wrapper.reason if wrapper is not None and is_unstarted else None


def final_end(code: int | None, wrapper: WrapperEnd | None) -> RunEnd | None:
    """Return the end of a wrapper that must not be restarted: it gave up, or a newer attempt runs
    elsewhere, and both would write the same checkpoints."""
    if code not in _FINAL_CODES:
        return None
    reason = wrapper.reason if wrapper is not None else None
    return RunEnd(code, reason or "the wrapper gave up", False)


def stopped(decision: Decision) -> RunEnd:
    code = 1 if decision.cause in _USER_FIXES else GIVE_UP_EXIT_CODE
    return RunEnd(code, decision.reason, False)


def outcome(code: int, job: Job, assessment: Assessment, wrapper: WrapperEnd | None) -> RunEnd:
    """Return the end of a run whose command ended and needs no action."""
    if job.attempt.is_done and not code:
        return RunEnd(0, f"training is done, iteration {job.attempt.iteration}", True)
    if not code and (report := finished(wrapper)) is not None:
        return RunEnd(0, report, True)
    if (why := unstarted(wrapper)) is not None:
        return RunEnd(code, why, False)
    reported = verdict(job, assessment.findings, assessment.decision)
    if reported.cause is Cause.FINISHED and code == EARLY_EXIT:
        return RunEnd(0, reported.summary, True)  # the wrapper knows only one attempt
    if not code and reported.cause is Cause.UNKNOWN:
        return RunEnd(0, "command finished", True)
    return RunEnd(code, reported.summary, reported.cause in (Cause.FINISHED, Cause.HEALTHY))


_TICK_SECONDS = 0.5
_SETTLE_SECONDS = 1.0
"""Time after the end of a training to read and assess its last lines."""
_SETTLE_TICK_SECONDS = 0.1
_START_SECONDS = 60.0
"""Retry a failed start for this long: the disk or the process table may be full."""
_MOST_FAILURES = 5
_MOST_TRIES = 3
_USAGE = 2
_ASLEEP_SECONDS = 5.0
"""A sleep this much longer than asked means that mwatch (Ctrl-Z) or the machine was stopped."""


@dataclass(frozen=True, slots=True)
class SupervisedCommand:
    argv: Sequence[str]
    folder: RunFolder
    is_act: bool = False
    grace_seconds: float = 30.0
    """Time for a last checkpoint after Ctrl-C."""
    wrapper_options: Sequence[str] = ()
    output: TrainerOutput = TrainerOutput.DIRECT
    adopted: UnattendedRun | None = None
    """A run whose attempt already runs; only later attempts are started here."""
    environ: Mapping[str, str] | None = None
    working_folder: str | None = None


@dataclass(slots=True)
class _Restart:
    """A restart in progress: the old attempt has ended, the new one has not started."""

    decision: Decision
    since: float
    problem: str = ""


class LocalRun:
    def __init__(
        self,
        command: SupervisedCommand,
        watch: RunWatcher,
        view: RunObserver,
        faults: InternalErrors,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """`note`: shows the user a message that also belongs in the report."""
        self._note = view.noted if note is None else note
        self._command = command
        self._watch = watch
        self._view = view
        self._faults = faults
        self._next = NextAttempt(command.folder.volume, watch.engine.job, watch.clock)
        self._interrupts = Interrupts()
        self._wrapper: process.WrapperProcess | None = None
        self._output: OutputBuffer | None = None
        self._gone_at: float | None = None
        self._restart: _Restart | None = None
        self._stopped_by: Decision | None = None
        self._is_loss_reported = False
        self._failures = 0
        self._hold_until = 0.0
        self._decided: Decision | None = None
        self._tries = 0
        self._unstarted = 0

    def run(self) -> RunEnd:
        """Run until the command has ended and is not restarted, or until an interrupt."""
        blocked = BlockedMainThread(self._report_blocked, self._end_blocked)
        with interrupts() as self._interrupts, blocked.watched():
            try:
                self._interrupts.begin()
                ended = self._run()
            except Interrupted as interrupted:
                ended = RunEnd(interrupted.exit_code, "interrupted", False, True)
                self._stop_in_order()
            self._leave(ended)
            with suppress(Interrupted):  # the terminal may be stopped
                self._view.ended(ended)
        return ended

    def _run(self) -> RunEnd:
        with self._faults.guard():
            self._watch.begin()
        try:
            if self._command.adopted is not None:
                self._wrapper = adopt_wrapper(self._command.adopted)
            else:
                self._start()
        except InputError as error:
            return RunEnd(_USAGE, str(error), False)
        ended = None
        while ended is None:
            began = time.monotonic()
            ended = self._turn()
            if ended is None:
                tick = _TICK_SECONDS if self._gone_at is None else _SETTLE_TICK_SECONDS
                self._sleep(tick - (time.monotonic() - began))
        return ended

    def _sleep(self, seconds: float) -> None:
        """Wait for the next turn, or less if the command ends. Silence while mwatch was suspended
        proves nothing, so no action is taken for the same time afterwards."""
        began = time.monotonic()
        if self._wrapper is None:
            time.sleep(max(0.0, seconds))
        else:
            self._wrapper.wait(max(0.0, seconds))
        asleep = time.monotonic() - began - seconds
        if asleep > _ASLEEP_SECONDS:
            self._hold_until = time.monotonic() + asleep
            gap = f"{asleep:.0f} s"
            self._view.noted(f"mwatch was suspended for {gap}; taking no action for the next {gap}")

    def _start(self) -> None:
        command = self._command
        self._show_output()
        with self._interrupts.held():
            self._wrapper = process.start(
                command.argv,
                command.folder.volume,
                is_act=command.is_act,
                options=command.wrapper_options,
                output=command.output,
                environ=command.environ,
                folder=command.working_folder,
            )
            if self._wrapper.output is not None:
                self._output = OutputBuffer(self._wrapper.output)
        self._gone_at = None
        self._is_loss_reported = False

    def _turn(self) -> RunEnd | None:
        """Run the loop once; return the end of the run, if it is over."""
        try:
            self._show_output()
            assessment = self._watch.look()
            self._next.known(self._watch.recalled)
            if self._restart is not None:
                ended = self._start_again(self._restart)
            elif self._command.is_act and (
                ended := final_end(self._exit_code(), self._watch.ended)
            ):
                self._watch.attempt_ended()
            else:
                self._consider(assessment.decision)
                ended = self._end(assessment)
            self._failures = 0
        except Exception as error:
            self._faults.report(error)
            self._failures += 1
            return self._end_unjudged()
        return ended

    def _consider(self, decision: Decision) -> None:
        if not self._watch.is_due(decision) or finished(self._watch.ended):
            return
        if time.monotonic() < self._hold_until and self._exit_code() is None:
            return
        evidence = None
        with self._faults.guard():
            evidence = self._watch.keeper.collect_evidence_before_restart(decision)
        again = self._watch.look_closely().decision
        is_same = (again.action, again.cause) == (decision.action, decision.cause)
        if is_same:  # the fault may be gone or changed after evidence was saved
            self._carry_out(again, evidence)

    def _carry_out(self, decision: Decision, evidence: Path | None) -> None:
        is_act = self._command.is_act
        self._watch.enacted(decision)
        self._view.acted(decision, is_act, None if evidence is None else str(evidence))
        if not is_act:
            return
        if decision.action is Action.RESTART:
            self._restart = _Restart(decision, time.monotonic())
            self._decided, self._tries = decision, 0
        else:
            self._stopped_by = decision
        if self._wrapper is not None and self._exit_code() is None:
            self._wrapper.stop(decision.reason, 0.0)
        if self._gone_at is None:
            with self._faults.guard():
                self._watch.attempt_ended()

    def _start_again(self, restart: _Restart) -> RunEnd | None:
        try:
            left = [] if self._wrapper is None else self._wrapper.clear()
            if left:  # two attempts would overwrite each other's checkpoints
                pids = ", ".join(map(str, left[:8]))
                raise InputError(f"processes of the last attempt do not end: kill {pids}")
            self._next.order(restart.decision)
            self._start()
        except InputError as error:
            if time.monotonic() - restart.since > _START_SECONDS:
                return RunEnd(GIVE_UP_EXIT_CODE, f"given up: {error}", False)
            if str(error) != restart.problem:
                restart.problem = str(error)
                self._view.noted(f"the next attempt cannot start yet: {error}")
            return None
        self._restart = None
        return None

    def _end(self, assessment: Assessment) -> RunEnd | None:
        """Return the end of the run, if the command has ended and needs no action."""
        if self._stopped_by is not None:
            return stopped(self._stopped_by)
        code_now = self._exit_code()
        if code_now is None or self._restart is not None or self._starts_once_more():
            return None
        now = self._watch.clock.now()
        if self._gone_at is None:
            self._gone_at = now
            wrapper = self._wrapper
            self._watch.attempt_ended(None if wrapper is None else wrapper.unreported_exit)
            return None
        is_training = code_now != 0 or self._watch.engine.job.attempt.iteration is not None
        if is_training and now - self._gone_at < _SETTLE_SECONDS:
            return None
        if self._command.is_act and code_now == NOT_AGREED and self._try_again():
            return None
        wrapper_end, decision = self._watch.ended, assessment.decision
        if decision.action is not Action.NONE and not finished(wrapper_end):
            if self._command.is_act:
                return None  # the action is not due yet
            self._carry_out(decision, None)
        return outcome(code_now, self._watch.engine.job, assessment, wrapper_end)

    def _starts_once_more(self) -> bool:
        """Start again if the wrapper was killed before it had started the command."""
        wrapper = self._wrapper
        if wrapper is None or not wrapper.is_unstarted or self._unstarted >= _MOST_TRIES:
            return False
        self._unstarted += 1
        wrapper.clear()
        self._view.noted("mwatch-run was killed before it started the command: starting it again")
        with suppress(InputError):  # the next round tries again
            self._start()
        return True

    def _try_again(self) -> bool:
        """Repeat the orders a few times if the wrapper did not see them because storage lags."""
        if self._decided is None or self._tries >= _MOST_TRIES:
            return False
        self._tries += 1
        self._restart = _Restart(self._decided, time.monotonic())
        return True

    def _end_unjudged(self) -> RunEnd | None:
        """Return the end of a run that mwatch itself fails to assess; no action is taken."""
        code = self._exit_code()
        if code is None or self._failures < _MOST_FAILURES:
            return None
        return RunEnd(code, "the command has ended; its exit code is unknown", False)

    def _exit_code(self) -> int | None:
        if self._wrapper is None:
            return None
        code = self._wrapper.exit_code
        if self._wrapper.has_orphan and not self._is_loss_reported:
            self._is_loss_reported = True
            lost = "mwatch-run is gone; training goes on, but its output is no longer recorded"
            self._view.noted(lost)
        return code

    def _stop_in_order(self) -> None:
        """End the run after a first signal; a second one hurries, later ones change nothing."""
        try:
            if self._wrapper is not None and self._wrapper.exit_code is None:
                self._view.noted("interrupted: ending the run; interrupt again to end it at once")
                self._wrapper.stop("interrupted by a person", self._command.grace_seconds)
            with self._faults.guard():
                self._show_output()
                self._watch.attempt_ended()
        except Interrupted:
            self._interrupts.ignore()

    def _report_blocked(self) -> None:
        _say("the disk of the run folder does not answer: training goes on and is not watched")

    def _end_blocked(self, number: int) -> None:
        """End the run after a signal while the main thread is blocked."""
        if self._wrapper is not None:
            self._wrapper.stop_without_disk(self._command.grace_seconds)
        _say("interrupted; the disk of the run folder does not answer: nothing more was recorded")
        os._exit(128 + number)

    def _show_output(self) -> None:
        if self._output is not None:
            self._view.printed(self._output.take())

    def _leave(self, ended: RunEnd) -> None:
        """Leave no process running, whatever happened; a signal only shortens the wait."""
        try:
            with self._interrupts.held():
                if self._wrapper is not None:
                    self._wrapper.kill()
                if self._output is not None:
                    self._view.printed(self._output.rest())
            with self._faults.guard():
                self._note_left()
            with self._faults.guard():
                self._watch.end(ended)
        except Interrupted:
            self._interrupts.ignore()
            with self._faults.guard():
                self._watch.end(ended, is_hurried=True)

    def _note_left(self) -> None:
        left = [] if self._wrapper is None else self._wrapper.left
        if left:
            after = "they end with this container" if os.getpid() == 1 else "not watched any more"
            running = f"the command has ended, still running: {', '.join(left)}"
            self._note(f"{running}; {after}")


def _say(text: str) -> None:
    """Print without the view, which the main thread may hold."""
    with suppress(OSError):
        os.write(2, f"mwatch: {text}\n".encode())
