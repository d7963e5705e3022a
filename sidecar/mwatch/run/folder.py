# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`runs/<name>/`: the results of a watched run, and the volume it shares with its wrapper.

If a name is taken, a number is appended, so that nothing of an earlier run is overwritten. Old runs
are kept until the user deletes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from mwatch.errors import InputError
from mwatch.report.files import STORY
from mwatch_trainer import contract

_MAX_NAME = 64
_MOST_OF_A_NAME = 1000
_MODULE_FLAGS = frozenset({"-m", "--module"})
_LAUNCHERS = ("torch.distributed.", "accelerate.", "deepspeed.", "composer.cli")


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.volume = path / "volume"
        self.log = self.volume / contract.LOG
        self.story = path / STORY
        self.report = path / "report.html"
        self.incidents = path / "incidents"


def make(parent: Path, name: str | None, argv: Sequence[str], now: float) -> RunFolder:
    """Create the folder of a run; raise InputError if that fails."""
    wanted = _safe(name) if name else f"{_program(argv)}-{datetime.fromtimestamp(now):%m%d-%H%M%S}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST_OF_A_NAME):
            folder = parent / (wanted if number == 1 else f"{wanted}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            (folder / "volume").mkdir(mode=0o700)  # it holds environments and stacks
            return RunFolder(folder.resolve())
    except OSError as error:
        fix = "name another folder with --runs"
        raise InputError(f"cannot write to {parent}: {error.strerror}; {fix}") from error
    raise InputError(f"{parent} has too many runs named {wanted}; give another --name")


def _safe(name: str) -> str:
    if name in (".", "..") or not re.fullmatch(r"[\w.+-]+", name) or len(name) > _MAX_NAME:
        raise InputError(
            f"--name {name}: use letters, digits, dots and dashes, at most {_MAX_NAME}"
        )
    return name


def _program(argv: Sequence[str]) -> str:
    """Name the run after its training script or module."""
    for before, word in pairwise(("", *argv)):
        if before in _MODULE_FLAGS and not word.startswith(_LAUNCHERS):
            return _short(word.rpartition(".")[2])
        if word.endswith(".py"):
            return _short(os.path.basename(word).removesuffix(".py"))
    return _short(os.path.basename(argv[0] if argv else ""))


def _short(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[: _MAX_NAME // 2] or "run"
