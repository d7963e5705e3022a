# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`sidecar.json` on the shared volume: where the sidecar of this pod listens, and who it is.

The port moves on when it is taken, so whoever looks for the sidecar reads it here. The volume may
come later than we do, or be emptied: it is written again where it is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mwatch_trainer import contract

NAME = "sidecar.json"


class SidecarFile:
    def __init__(self, volume: Path, document: Mapping[str, Any]) -> None:
        self._path = volume / NAME
        self._document = document
        self.is_written = False
        self.problem: str | None = None

    def keep(self) -> None:
        """Cheap while it is there."""
        if self._path.exists() and self.problem is None and self.is_written:
            return
        try:
            contract.write_json(str(self._path), self._document)
            self.is_written, self.problem = True, None
        except FileNotFoundError:
            self.is_written, self.problem = False, None  # there is no volume yet
        except OSError as error:
            self.problem = f"{self._path}: cannot be written ({error.strerror or error})"

    def remove(self) -> None:
        if self.is_written:
            self._path.unlink(missing_ok=True)
