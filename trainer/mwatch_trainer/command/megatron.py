# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's arguments for saving and loading checkpoints.

`--ckpt-step` is accepted since core_v0.6.0, but loading follows it only since core_v0.12.0 (before
that it applied to the arguments stored in a checkpoint, or to nothing). A launcher that restarts
its workers in place would return to `--ckpt-step` each time, so the tracker, which moves with each
save, is used there instead.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from typing import Iterator, Mapping, NamedTuple, Sequence

from mwatch_trainer import contract
from mwatch_trainer.command import argv
from mwatch_trainer.command.argv import Program

SAVE = ("--save", "--save-dir", "--save_dir")
LOAD = ("--load", "--load-dir", "--load_dir")
STEP = "--ckpt-step"
YAML = "--yaml-cfg"
EXIT_ON_MISSING = "--exit-on-missing-checkpoint"
FIRST_ATTEMPT_ONLY = (
    ("--finetune", False),
    ("--pretrained-checkpoint", True),
    ("--no-load-optim", False),
    ("--no-load-rng", False),
)  # flags that reset a run, and whether they take a value
_MAX_YAML = 1 << 20


class Folders(NamedTuple):
    save: str | None
    load: str | None


class Edit(NamedTuple):
    args: tuple[str, ...]
    changes: tuple[str, ...]


def folders(program: argv.Program) -> Folders:
    save, load = argv.value_of(program.args, *SAVE), argv.value_of(program.args, *LOAD)
    config = argv.value_of(program.args, YAML)
    if config is not None:
        save, load = _of_yaml(config, "save"), _of_yaml(config, "load")
    if program.obstacle is not None:
        save = save if save is not None and argv.is_expanded(save) else None
        load = load if load is not None and argv.is_expanded(load) else None
    return Folders(save, load)


def obstacle(program: argv.Program) -> str | None:
    if program.obstacle is None and argv.has_flag(program.args, YAML):
        return "with --yaml-cfg Megatron reads no other argument"
    return program.obstacle


def launcher_restarts(
    command: Sequence[str], program: argv.Program, environ: Mapping[str, str]
) -> bool:
    options = command[: program.start]
    text = argv.value_of(options, "--max-restarts", "--max_restarts")
    if text is None:
        text = environ.get("PET_MAX_RESTARTS", "0")
    return text.strip() not in ("", "0")


def resume(args: Sequence[str], folder: str, iteration: int, by_step: bool) -> Edit:
    changes: list[str] = []
    edited = tuple(args)
    for name, takes_value in FIRST_ATTEMPT_ONLY:
        if argv.has_flag(edited, name):
            edited = argv.without(edited, name, takes_value)
            changes.append(f"removed {name}: it is for a first attempt")
    flag = next((name for name in LOAD if argv.has_flag(edited, name)), LOAD[0])
    if argv.value_of(edited, flag) != folder:
        was = argv.value_of(edited, flag)
        edited = argv.with_value(edited, flag, folder)
        changes.append(f"set {flag} to {folder}" + (f" (was {was})" if was is not None else ""))
    was = argv.value_of(edited, STEP)
    if by_step and was != str(iteration):
        edited = argv.with_value(edited, STEP, str(iteration))
        changes.append(f"set {STEP} to {iteration}" + (f" (was {was})" if was is not None else ""))
    elif not by_step and was is not None:
        edited = argv.without(edited, STEP, True)
        changes.append(f"removed {STEP} {was}: the tracker decides")
    return Edit(edited, tuple(changes))


def from_beginning(args: Sequence[str]) -> Edit:
    edited, changes = tuple(args), []
    for name, takes_value in [
        *((each, True) for each in LOAD),
        (STEP, True),
        (EXIT_ON_MISSING, False),
    ]:
        if argv.has_flag(edited, name):
            edited = argv.without(edited, name, takes_value)
            changes.append(f"removed {name}: the run starts over")
    return Edit(edited, tuple(changes))


def _of_yaml(path: str, key: str) -> str | None:
    """Return a plain value by its key; None for anything that would need a parser."""
    text = (contract.read_bytes(path, _MAX_YAML) or b"").decode("utf-8", "replace")
    found = re.findall(rf"(?m)^\s*{key}\s*:[ \t]*([^\s#].*?)\s*(?:#.*)?$", text)
    value = found[-1].strip("\"'") if found else ""
    return value if argv.is_expanded(value) and value not in ("null", "None") else None


_FILES = (("megatron", "training", "checkpointing.py"), ("megatron", "checkpointing.py"))
_FOLLOWS = re.compile(
    rb"getattr\(\s*args\s*,\s*['\"]ckpt_step['\"]|iteration\s*=\s*args\.ckpt_step"
)
_MAX_SOURCE = 4 << 20
_MAX_PLACES = 64


def follows_ckpt_step(
    command: Sequence[str], program: Program, environ: Mapping[str, str]
) -> bool | None:
    """Whether the Megatron that will run follows `--ckpt-step` when it loads; None: unknown.

    Searches the source that Python would find, without importing anything. Paths that the program
    itself adds at run time are not considered.
    """
    if program.name.split(".")[0] == "mwatch_gpt":
        return True
    for number, place in enumerate(_places(command, program, environ)):
        if number >= _MAX_PLACES:
            break
        for parts in _FILES:
            source = contract.read_bytes(os.path.join(place, *parts), _MAX_SOURCE)
            if source is not None:
                return _FOLLOWS.search(source) is not None
    return None


def _places(command: Sequence[str], program: Program, environ: Mapping[str, str]) -> Iterator[str]:
    yield os.path.dirname(program.name) if program.name.endswith(".py") else ""
    yield from filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    yield ""
    for word in command[: program.start]:
        path = shutil.which(word, path=environ.get("PATH"))
        if path is None:
            continue
        prefix = os.path.dirname(os.path.dirname(path))
        for kind in ("site-packages", "dist-packages"):
            yield from sorted(glob.glob(os.path.join(glob.escape(prefix), "lib", "python3*", kind)))
