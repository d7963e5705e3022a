# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes one dataset: tokens as they come, the index at the end, names only when both are whole.

Three parts grow beside the output: tokens, lengths, documents. None is named as training would
look for it before everything is on the disk.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from itertools import accumulate
from pathlib import Path

from mwatch_gpt.data import index_file
from mwatch_gpt.data.encoding import Encoded
from mwatch_gpt.data.unfinished import Sizes


class DatasetWriter:
    def __init__(self, prefix: str, typecode: str) -> None:
        self.prefix = prefix
        self._typecode = typecode
        names = ("bin", "lengths", "documents")
        self._parts = [Path(f"{prefix}.{name}.part") for name in names]

    @property
    def is_finished(self) -> bool:
        return self._final("idx").exists() and self._final("bin").exists()

    def _final(self, ending: str) -> Path:
        return Path(f"{self.prefix}.{ending}")

    def lost(self, sizes: Sizes, *, is_finishing: bool) -> str | None:
        """What was written and is not there any more: a sentence, or None."""
        for path, size in zip(self._parts, sizes, strict=True):
            # Tokens have their last name first.
            is_named = is_finishing and path is self._parts[0] and not path.exists()
            found = self._final("bin") if is_named else path
            have = found.stat().st_size if found.exists() else 0
            if have < size:
                return f"{found}: has {have} bytes of {size} that were written"
        return None

    def open(self, sizes: Sizes) -> None:
        """At the end of what was safely written; what came after it is cut off."""
        self._parts[0].parent.mkdir(parents=True, exist_ok=True)
        self._files = [path.open("r+b" if path.exists() else "w+b") for path in self._parts]
        for file, size in zip(self._files, sizes, strict=True):
            file.truncate(size)
            file.seek(size)
        self._sequences = sizes.lengths // 4
        if not sizes.documents:
            self._files[2].write(array("q", [0]).tobytes())

    def add(self, encoded: Encoded) -> None:
        tokens, lengths, documents = self._files
        tokens.write(encoded.tokens)
        lengths.write(encoded.lengths)
        counts = array("i", encoded.documents)
        ends = array("q", accumulate(counts, initial=self._sequences))
        self._sequences = ends[-1]
        documents.write(ends[1:].tobytes())

    @property
    def sizes(self) -> Sizes:
        """With what is not on the disk yet."""
        return Sizes(*(file.tell() for file in self._files))

    def sync(self) -> None:
        """Everything so far is on the disk when this returns."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()

    def finish(self) -> None:
        """May be done again after a kill in the middle of it."""
        data, lengths, documents = self._parts
        index = Path(f"{self.prefix}.idx.part")
        with index.open("wb") as out:
            index_file.write(out, self._typecode, lengths, documents)
            out.flush()
            os.fsync(out.fileno())
        if data.exists():
            # An old index must not stand beside new tokens, not for a moment.
            self._final("idx").unlink(missing_ok=True)
            os.replace(data, self._final("bin"))
        os.replace(index, self._final("idx"))
        _sync_folder(data.parent)

    def clear(self) -> None:
        """The parts, when they are of no more use."""
        for path in (*self._parts, Path(f"{self.prefix}.idx.part")):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some network file systems cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
