# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A JSON file of the shared volume that others replace: read only when it is another one.

Whoever writes it renames a new file over it, so a file with the same inode, time and size is the
same. It is looked at every second for months: a look at one that did not change costs a `stat`.
"""

from __future__ import annotations

import os
from typing import Any

import orjson

from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch_trainer.contract import MAX_JSON_BYTES


class JsonFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._last: Reading[dict[str, Any]] = Absent("not read yet")

    @property
    def name(self) -> str:
        return os.path.basename(self._path)

    def read(self) -> Reading[dict[str, Any]]:
        """Absent: there is no file; Failed: nothing that can be used."""
        try:
            status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._stamp = None
            return Absent(f"there is no {self.name}")
        except OSError as error:
            self._stamp = None
            return Failed(f"{self.name} cannot be read: {error.strerror or error}")
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._last = self._load()
            self._stamp = stamp if isinstance(self._last, Ok) else None
        return self._last

    def _load(self) -> Reading[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                data = file.read(MAX_JSON_BYTES + 1)
            body = orjson.loads(data)
        except FileNotFoundError:
            return Absent(f"there is no {self.name}")
        except (OSError, ValueError):
            return Failed(f"{self.name} cannot be read")
        if not isinstance(body, dict) or len(data) > MAX_JSON_BYTES:
            return Failed(f"{self.name} cannot be read")
        return Ok(body)
