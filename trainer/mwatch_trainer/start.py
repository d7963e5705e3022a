# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From a choice to a command line, and to what must be true of the tracker before it is run."""

from __future__ import annotations

from typing import NamedTuple

from mwatch_trainer import choice as choices
from mwatch_trainer import composer_argv, megatron_argv
from mwatch_trainer.checkpoint import read_tracker
from mwatch_trainer.run_facts import Run
from mwatch_trainer.save_folder import Candidate

NO_TRACKER = "none"
"""The tracker must be away."""


class Start(NamedTuple):
    argv: tuple[str, ...]
    changes: tuple[str, ...] = ()
    tracker: str | None = None
    """What the tracker must say: a number, or NO_TRACKER; None where it does not matter."""
    is_chosen: bool = True
    """False: what was chosen cannot be brought about; the changes say why."""


def of_choice(run: Run, kind: str, seen: Candidate | None, has_newer: bool, by_step: bool) -> Start:
    """`has_newer`: checkpoints above the chosen one lie there; without one, any at all."""
    if kind == choices.RESUME and seen is not None and run.save is not None:
        if run.is_composer:
            return _composer(run, seen.name, has_newer)
        return _megatron(run, seen.iteration, by_step)
    if kind == choices.BEGIN and run.save is not None:
        return _beginning(run, has_newer, by_step)
    return Start(run.command)


def _megatron(run: Run, iteration: int, by_step: bool) -> Start:
    wanted = str(iteration)
    if run.obstacle is not None:
        changes = [f"left the arguments alone: {run.obstacle}"]
        if not run.resumes_itself:
            changes.append(f"--load does not lead to {run.save}, so {iteration} is not loaded")
            return Start(run.command, tuple(changes), None, False)
        return Start(run.command, tuple(changes), wanted)
    by_step = by_step and iteration > 0  # Megatron takes a step 0 for none
    edit = megatron_argv.resume(run.program.args, run.save_text, iteration, by_step)
    pointer = read_tracker(run.save or "")
    # Megatron reads the tracker also with --ckpt-step: garbage ends it, `release` wins over a step.
    is_in_the_way = pointer is not None and (pointer.value or "release") == "release"
    tracker = wanted if not by_step or is_in_the_way else None
    return Start(run.with_args(edit.args), edit.changes, tracker)


def _composer(run: Run, name: str, has_newer: bool) -> Start:
    if run.obstacle is not None:
        why = f"left the arguments alone: {run.obstacle}; so {name} is not loaded by us"
        return Start(run.command, (why,), None, False)
    edit = composer_argv.resume(run.program.args, run.save_text, name, run.config, has_newer)
    return Start(run.with_args(edit.args), edit.changes)


def _beginning(run: Run, has_any: bool, by_step: bool) -> Start:
    if run.is_composer and run.obstacle is None:
        edit = composer_argv.from_beginning(run.program.args, run.config, has_any)
        return Start(run.with_args(edit.args), edit.changes)
    if not has_any or not run.resumes_itself:
        return Start(run.command)
    if run.is_composer or run.obstacle is not None or not by_step:
        # A launcher that restarts its workers must find what this attempt saves meanwhile.
        return Start(run.command, (), None if run.is_composer else NO_TRACKER)
    edit = megatron_argv.from_beginning(run.program.args)
    return Start(run.with_args(edit.args), edit.changes)
