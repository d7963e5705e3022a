# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The plan of an attempt: the checkpoint it starts from, by order or by rule, and the command line.

The rule: a first attempt runs as given, unless it would resume by itself from an incomplete or bad
checkpoint. Later attempts resume from the newest good checkpoint of the timeline. If checkpoints
were written and none is usable, nothing is started: starting over would overwrite checkpoints that
a person may still be able to rescue.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Callable, Mapping, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer.attempt import fencing
from mwatch_trainer.checkpoint import timeline as timelines
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import read_tracker
from mwatch_trainer.checkpoint.save_dir import Candidate, SaveDirView, find, newest, pointed
from mwatch_trainer.checkpoint.timeline import ABANDONED, GOOD, TimelineFile
from mwatch_trainer.command import composer, megatron
from mwatch_trainer.command.run_facts import RunFacts
from mwatch_trainer.reporting import GIVE_UP, NOT_AGREED


class WaitClock(NamedTuple):
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = WaitClock()


class AttemptOptions(NamedTuple):
    mode: str = contract.OBSERVE
    directory: str | None = None  # `$MWATCH_DIR`; None: no volume
    wait_seconds: float = 600.0
    """Time limit for the other wrappers, and again for the chosen checkpoint to become visible on
    this node: a caching file system may show each of three files two minutes late."""
    controller_seconds: float = 60.0  # time limit for the controller; then start without it
    with_probe: bool = True


class AttemptPlan(NamedTuple):
    number: int
    argv: tuple[str, ...]  # in observe mode byte-equal to what was given
    env: dict[str, str]
    changes: tuple[str, ...] = ()  # what was changed; in observe mode, what would have been
    resume_from: int | None = None
    resume_reason: str = ""
    save: str | None = None
    not_before: float | None = None  # wall time at which to start
    refused: str | None = None  # why this wrapper must not start and exits with `exit_code`
    exit_code: int | None = None
    node_rank: int = 0
    nnodes: int = 1
    is_permanent: bool = False
    """Only with `refused`: another start cannot succeed either (`final` in attempt.json)."""


class StartRefused(Exception):
    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


def started_before(last: Mapping[str, Any]) -> int:
    """Return the last attempt started on this volume, from its `attempt.json`; 0: none."""
    number = last.get("attempt")
    if not isinstance(number, int) or isinstance(number, bool):
        return 0
    return max(0, number if last.get("started_at") is not None else number - 1)


class Preparation:
    def __init__(
        self,
        run: RunFacts,
        environ: Mapping[str, str],
        options: AttemptOptions,
        last: Mapping[str, Any],
        clock: WaitClock,
    ) -> None:
        self.run = run
        self.environ = environ
        self.options = options
        self.clock = clock
        self.last = started_before(last)
        self.number = self.last + 1
        self.changes: list[str] = list(run.notes)
        self.timeline = timelines.TimelineFile()
        self.highest = 0  # the highest number claimed when this preparation began
        self.nonce = uuid.uuid4().hex  # identifies this wrapper to the other nodes

    def read_timeline(self, save: str) -> None:
        try:
            self.timeline, self.highest = fencing.current(save)
        except timelines.BrokenTimeline as error:
            path = timelines.path_of(save)
            why = f"{path} {error}; which checkpoints are bad is unknown"
            raise StartRefused(why, GIVE_UP) from None
        except OSError as error:
            raise StartRefused(f"{save} cannot be read: {error}", NOT_AGREED) from None

    def wait(self, is_done: Callable[[], bool], bound: float | None = None) -> bool:
        seconds = self.options.wait_seconds if bound is None else bound
        return fencing.wait(is_done, seconds, self.clock.monotonic, self.clock.sleep)

    def answer(self, **more: Any) -> AttemptPlan:
        place = self.run.place
        given = AttemptPlan(
            self.number,
            self.run.command,
            {},
            tuple(self.changes),
            save=self.run.save,
            node_rank=place.node_rank or 0,
            nnodes=place.nnodes,
        )
        return given._replace(**more)


AS_IS = "as is"
RESUME = "resume"
BEGIN = "begin"


class StartChoice(NamedTuple):
    kind: str
    reason: str
    checkpoint: Candidate | None = None  # for AS_IS: the one the program would load itself
    refused: str | None = None


def by_rule(
    is_first: bool, resumes_itself: bool, view: SaveDirView, timeline: TimelineFile
) -> StartChoice:
    if is_first and not resumes_itself:
        return StartChoice(AS_IS, "the first attempt runs as given")
    if is_first:
        seen = pointed(view)
        is_whole = seen is not None and seen.state is not CheckpointState.INCOMPLETE
        if is_whole and seen is not None and seen.standing == GOOD:
            return StartChoice(AS_IS, "the program's own pointer names a good checkpoint", seen)
    chosen = newest(view)
    if chosen is not None:
        return StartChoice(RESUME, _reason(chosen, view), chosen)
    return _nothing_good(view, timeline)


def by_order(resume_from: int, view: SaveDirView, reason: str) -> StartChoice:
    """Choose the ordered checkpoint; the choice has None if it is not visible on this node yet."""
    return StartChoice(
        RESUME, reason or f"iteration {resume_from} was ordered", find(view, resume_from)
    )


def _reason(chosen: Candidate, view: SaveDirView) -> str:
    sure = "complete" if chosen.is_sure else "unverified, and nothing verified exists"
    passed = [each for each in view.candidates if each.iteration > chosen.iteration]
    text = f"the newest good checkpoint of the timeline ({sure})"
    if passed:
        worst = passed[0]
        why = worst.standing if worst.standing != GOOD else worst.state.value
        text += f"; {worst.iteration} is {why}"
    return text


def _nothing_good(view: SaveDirView, timeline: TimelineFile) -> StartChoice:
    alive = [each for each in view.candidates if each.standing != ABANDONED]
    if not alive:
        if not view.candidates:
            return StartChoice(AS_IS, "no checkpoint was written yet")
        if any(each.to_iteration == 0 for each in timeline.rollbacks):
            return StartChoice(BEGIN, "the run was rolled back to its beginning")
    seen = view.candidates[0]
    why = seen.standing if seen.standing != GOOD else seen.state.value
    what = f"{len(view.candidates)} checkpoints were written and none can be used"
    return StartChoice(AS_IS, "", None, f"{what} (the newest, {seen.name}, is {why})")


NO_TRACKER = "none"  # the tracker must not exist


class Start(NamedTuple):
    argv: tuple[str, ...]
    changes: tuple[str, ...] = ()
    tracker: str | None = None  # the required tracker: a number, or NO_TRACKER; None: any
    is_chosen: bool = True  # false: the choice cannot be carried out; the changes say why


def start_for(
    run: RunFacts, kind: str, seen: Candidate | None, has_newer: bool, by_step: bool
) -> Start:
    """Return the command line and tracker for a start of this kind.

    `has_newer`: newer checkpoints than the chosen one exist (any at all, if none is chosen).
    """
    if kind == RESUME and seen is not None and run.save is not None:
        if run.is_composer:
            return _composer(run, seen.name, has_newer)
        return _megatron(run, seen.iteration, by_step)
    if kind == BEGIN and run.save is not None:
        return _from_beginning(run, has_newer, by_step)
    return Start(run.command)


def _megatron(run: RunFacts, iteration: int, by_step: bool) -> Start:
    wanted = str(iteration)
    if run.obstacle is not None:
        changes = [f"left the arguments alone: {run.obstacle}"]
        if not run.resumes_itself:
            changes.append(f"--load does not point to {run.save}, so {iteration} is not loaded")
            return Start(run.command, tuple(changes), None, False)
        return Start(run.command, tuple(changes), wanted)
    by_step = by_step and iteration > 0  # Megatron treats --ckpt-step 0 as not set
    edit = megatron.resume(run.program.args, run.save_text, iteration, by_step)
    pointer = read_tracker(run.save or "")
    # Megatron reads the tracker even with --ckpt-step: an invalid tracker makes it exit, and
    # `release` takes precedence over the step.
    is_in_the_way = pointer is not None and (pointer.value or "release") == "release"
    tracker = wanted if not by_step or is_in_the_way else None
    return Start(run.with_args(edit.args), edit.changes, tracker)


def _composer(run: RunFacts, name: str, has_newer: bool) -> Start:
    if run.obstacle is not None:
        why = f"left the arguments alone: {run.obstacle}; so {name} is not loaded"
        return Start(run.command, (why,), None, False)
    edit = composer.resume(run.program.args, run.save_text, name, run.config, has_newer)
    return Start(run.with_args(edit.args), edit.changes)


def _from_beginning(run: RunFacts, has_any: bool, by_step: bool) -> Start:
    if run.is_composer and run.obstacle is None:
        edit = composer.from_beginning(run.program.args, run.config, has_any)
        return Start(run.with_args(edit.args), edit.changes)
    if not has_any or not run.resumes_itself:
        return Start(run.command)
    if run.is_composer or run.obstacle is not None or not by_step:
        # A launcher that restarts its workers must find the checkpoints that this attempt saves.
        return Start(run.command, (), None if run.is_composer else NO_TRACKER)
    edit = megatron.from_beginning(run.program.args)
    return Start(run.with_args(edit.args), edit.changes)
