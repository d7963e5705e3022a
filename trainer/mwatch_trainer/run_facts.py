# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the command line and the environment say about the run that is about to start."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Sequence

from mwatch_trainer import argv as words
from mwatch_trainer import composer_argv, megatron_argv, megatron_source, save_folder
from mwatch_trainer.megatron_argv import SAVE
from mwatch_trainer.nodes import Place, place_of

SAVE_VARIABLE = "MWATCH_SAVE"
"""Names the checkpoint folder where the command line does not show it."""


class Run(NamedTuple):
    command: tuple[str, ...]
    program: words.Program
    is_composer: bool
    config: str
    """Composer's YAML file."""
    save: str | None
    """The checkpoint folder, absolute; None where none is known, or it is an object store."""
    save_text: str
    """As the user wrote it."""
    resumes_itself: bool
    """The program looks in its own save folder for something to resume from."""
    obstacle: str | None
    by_step: bool
    """A checkpoint is named by a flag; else by the tracker."""
    place: Place
    notes: tuple[str, ...] = ()

    def with_args(self, args: Sequence[str]) -> tuple[str, ...]:
        return (*self.command[: self.program.start], *args)


def look(
    command: Sequence[str], environ: Mapping[str, str], learned: Mapping[str, Any] | None = None
) -> Run:
    """`learned`: this pod's last `attempt.json`; a launch script's folder is known by its log."""
    program = words.find_program(command, environ)
    if composer_argv.is_composer(program):
        seen = composer_argv.settings(program)
        folder, resumes_itself, config = seen.save_folder, seen.autoresume, seen.config
    else:
        folders = megatron_argv.folders(program)
        folder, config = folders.save, ""
        resumes_itself = folder is not None and _same(folder, folders.load)
    if folder is None and environ.get(SAVE_VARIABLE):
        folder, resumes_itself = environ[SAVE_VARIABLE], True
    if folder is None and learned is not None and learned.get("argv") == list(command):
        told = learned.get("save")
        if isinstance(told, str) and told:
            folder, resumes_itself = told, True
    notes = []
    if folder is not None and save_folder.is_remote(folder):
        notes.append(f"{folder} is an object store, which mwatch cannot look into")
        folder = None
    is_composer = composer_argv.is_composer(program)
    obstacle = program.obstacle if is_composer else megatron_argv.obstacle(program)
    if obstacle is None and not is_composer and not words.has_flag(program.args, *SAVE):
        obstacle = "the checkpoint folder is not among them"
    return Run(
        tuple(command),
        program,
        is_composer,
        config,
        None if folder is None else os.path.abspath(folder),
        folder or "",
        resumes_itself,
        obstacle,
        _by_step(command, program, environ, obstacle),
        place_of(command, program, environ),
        tuple(notes),
    )


def _same(one: str, other: str | None) -> bool:
    return other is not None and os.path.realpath(one) == os.path.realpath(other)


def _by_step(
    command: Sequence[str],
    program: words.Program,
    environ: Mapping[str, str],
    obstacle: str | None,
) -> bool:
    if obstacle is not None or megatron_argv.launcher_restarts(command, program, environ):
        return False
    return megatron_source.follows_ckpt_step(command, program, environ) is True
