# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How far a sidecar has told, kept on the volume over its own restarts.

A sidecar that is started again reads the log from its beginning, to know the run; whoever polls
it must not hear those lines twice, for a run that goes back is a run that was restarted. A block
of lines (a traceback) that was still open when the last life ended is not told again either.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import NamedTuple

import orjson

from mwatch.model.observation import Observed
from mwatch_trainer.contract import VERSION, read_json

NAME = "sidecar-cursor.json"
_MAX_LIFE = 32


class Told(NamedTuple):
    life: str
    newest: int
    """The number of the last that was told."""
    file: int
    """The inode of the log that was read last; 0: none was."""
    line: int
    """In that log."""


class CursorFile:
    def __init__(self, volume: Path) -> None:
        self._path = str(volume / NAME)
        self._last = self._load() or Told(secrets.token_hex(6), 0, 0, 0)
        self.began = self._last
        """Where the life before this one ended."""
        self._line = self._last.line
        self._is_old = self._last.file != 0

    def is_old(self, observed: Observed, file: int) -> bool:
        """Whether an earlier life has told it; `file` is the log that is read now."""
        line = getattr(observed.what, "line", 0)
        if not line:
            return False
        is_old = self._is_old and file == self.began.file and line <= self.began.line
        if not is_old:
            self._is_old = False
            self._line = line
        return is_old

    def keep(self, newest: int, file: int) -> None:
        """After each look; a disk that is full keeps the last one, and lines are told twice."""
        if self._is_old or newest == self._last.newest:
            return
        told = Told(self.began.life, newest, file, self._line)
        temporary = self._path + ".tmp"
        try:
            with open(temporary, "wb") as out:
                out.write(orjson.dumps({"version": VERSION, **told._asdict()}))
            os.replace(temporary, self._path)
        except OSError:
            return
        self._last = told

    def _load(self) -> Told | None:
        body = read_json(self._path) or {}
        life = body.get("life")
        if not isinstance(life, str) or not life.isalnum() or len(life) > _MAX_LIFE:
            return None
        numbers = [body.get(name) for name in Told._fields[1:]]
        known = [each for each in numbers if type(each) is int and each >= 0]
        return Told(life, *known) if len(known) == len(numbers) else None
