# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the training program in a command line, where its own arguments begin, and their values.

| command line | arguments of the program | edited |
| --- | --- | --- |
| `python [-u] pretrain_gpt.py ARGS` | after the `.py` | yes |
| `python -m mwatch_gpt ARGS` | after the module | yes |
| `torchrun OPTIONS [-m] PROGRAM ARGS`, `python -m torch.distributed.run ...` | after it | yes |
| `deepspeed`, `accelerate launch`, `composer`, `ft_launcher` and the like | after it | yes |
| `srun`, `env A=B`, `numactl`, `nsys profile`, ... before one of these | the same | yes |
| `llmfoundry train CONFIG.yaml key=value` | after `train` | yes |
| `bash -c "torchrun ... ARGS"` | parsed from the text, with the environment's variables | no |
| `bash train.sh ARGS`, `./train.sh ARGS` | what follows, as a hint | no |
| `python -c CODE` | none | no |
| any other program | all that follows | yes |

A flag is read as `--flag value` or `--flag=value`; as in argparse, the last one counts, and an edit
keeps the given form. If the arguments cannot be edited, the checkpoint is chosen with Megatron's
tracker file. What a launch script does with its arguments is unknown.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Mapping, NamedTuple, Sequence

_SHELLS = {"bash", "sh", "dash", "zsh", "ksh"}
_LAUNCHERS = {"torchrun", "deepspeed", "accelerate", "composer", "ft_launcher", "llmfoundry"}
_LAUNCHER_MODULES = re.compile(
    r"torch\.distributed\.\w+|accelerate\.commands\.\w+|deepspeed(\.launcher\.\w+)?"
    r"|composer\.cli\.\w+|nvidia_resiliency_ext\.[\w.]+",
    re.ASCII,
)
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_MODULE_FLAGS = ("-m", "--module", "--module_mode")
_MODULE = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_SHELL_TEXT = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*", re.ASCII)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_UNEXPANDED = re.compile(r"[$`*?\[\]]|^~")
_MAX_SHELL_TEXT = 200_000


class Program(NamedTuple):
    name: str  # the script or module
    launcher: str | None
    args: tuple[str, ...]  # the program's arguments; for a shell's text, those that can be parsed
    start: int  # index of `args` in the command line, if they can be edited
    obstacle: str | None = None  # why the arguments cannot be edited


def find_program(argv: Sequence[str], environ: Mapping[str, str]) -> Program:
    launcher: str | None = None
    is_python = False
    for index, word in enumerate(argv):
        base = os.path.basename(word)
        following = argv[index + 1] if index + 1 < len(argv) else ""
        if base in _SHELLS:
            return _of_shell(argv, index, environ)
        if word.endswith(".sh"):
            return _of_script(argv, index)
        if word.endswith((".py", ".pyz")):
            return _program(argv, word, launcher, index + 1)
        if base == "llmfoundry" and following == "train":
            return _program(argv, base, base, index + 2)
        is_module = word in _MODULE_FLAGS and bool(is_python or launcher)
        if is_module and _is_plain_module(following):
            return _program(argv, following, launcher, index + 2)
        if word == "-c" and is_python and launcher is None:
            return Program("-c", None, (), len(argv), "the program is a text for python")
        launcher = _launcher(base, following if is_module else "") or launcher
        is_python = is_python or _PYTHON.fullmatch(base) is not None
    return _program(argv, argv[0] if argv else "", launcher, min(1, len(argv)))


def _launcher(base: str, module: str) -> str | None:
    if base in _LAUNCHERS:
        return base
    return module if _LAUNCHER_MODULES.fullmatch(module) else None


def _is_plain_module(name: str) -> bool:
    return bool(_MODULE.fullmatch(name)) and not _LAUNCHER_MODULES.fullmatch(name)


def _program(argv: Sequence[str], name: str, launcher: str | None, start: int) -> Program:
    return Program(name, launcher, tuple(argv[start:]), start)


def _of_script(argv: Sequence[str], index: int) -> Program:
    why = f"what {argv[index]} does with its arguments is unknown"
    return Program(argv[index], None, tuple(argv[index + 1 :]), len(argv), why)


def _of_shell(argv: Sequence[str], index: int, environ: Mapping[str, str]) -> Program:
    shell = os.path.basename(argv[index])
    for place in range(index + 1, len(argv)):
        word = argv[place]
        if _SHELL_TEXT.fullmatch(word):
            text = argv[place + 1] if place + 1 < len(argv) else ""
            inner = find_program(_split(text, environ), environ)
            why = f"the command is a text for {shell}"
            return inner._replace(start=len(argv), obstacle=inner.obstacle or why)
        if not word.startswith(("-", "+")):
            return _of_script(argv, place)
    return Program(shell, None, (), len(argv), f"{shell} reads its commands elsewhere")


def _split(text: str, environ: Mapping[str, str]) -> list[str]:
    """Return the last command in the text that looks like a training program."""
    if len(text) > _MAX_SHELL_TEXT:
        return []
    lexer = shlex.shlex(
        text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True
    )
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("();<>|&"):
            commands.append([])
        else:
            commands[-1].append(_expanded(word, environ))
    known = [
        each
        for each in commands
        if any(word.endswith((".py", ".sh")) or word == "-m" for word in each)
    ]
    return known[-1] if known else []


def _expanded(word: str, environ: Mapping[str, str]) -> str:

    def value(found: re.Match[str]) -> str:
        return environ.get(found.group(1) or found.group(2), found.group(0))

    return _VARIABLE.sub(value, word)


def is_expanded(value: str) -> bool:
    """Whether the program will see exactly this value, which was parsed from a shell's text."""
    return bool(value) and _UNEXPANDED.search(value) is None


def value_of(args: Sequence[str], *names: str) -> str | None:
    found = None
    for index, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if equals:
            found = value
        elif _has_value(args, index):
            found = args[index + 1]
    return found


def _has_value(args: Sequence[str], index: int) -> bool:
    return index + 1 < len(args) and not args[index + 1].startswith("--")


def has_flag(args: Sequence[str], *names: str) -> bool:
    return any(word.partition("=")[0] in names for word in args)


def with_value(args: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """Set the last such flag to this value; append it if there is none."""
    changed = list(args)
    for index in range(len(changed) - 1, -1, -1):
        if changed[index].startswith(name + "="):
            changed[index] = f"{name}={value}"
            return tuple(changed)
        if changed[index] == name and _has_value(changed, index):
            changed[index + 1] = value
            return tuple(changed)
    return (*changed, name, value)


def without(args: Sequence[str], name: str, takes_value: bool) -> tuple[str, ...]:
    kept: list[str] = []
    skip = False
    for index, word in enumerate(args):
        if skip:
            skip = False
        elif word == name:
            skip = takes_value and _has_value(args, index)
        elif not (word.startswith(name + "=")):
            kept.append(word)
    return tuple(kept)
