# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes one dataset and the state of its conversion.

Three partial files grow beside the output: tokens, lengths, documents. The names that training
looks for appear only when everything is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from mwatch_gpt.data import index_file
from mwatch_gpt.data.corpus import BadInput, LineStart
from mwatch_gpt.data.encoding import Encoded

VERSION = 1
WRITING = "writing"
FINISHING = "finishing"  # all input is in the partial files; the index and the renames remain
DONE = "done"


class Sizes(NamedTuple):
    tokens: int = 0
    lengths: int = 0
    documents: int = 0


class ConversionState(NamedTuple):
    """The state file beside an output: how much of which input it safely contains.

    Written atomically after the data it describes, so that it stays valid after a kill, a full disk
    or a lost machine. A `done` file remains as the record of the output's inputs.
    """

    settings: str  # fingerprint of inputs, tokenizer and switches
    outputs: int = 1
    stage: str = WRITING
    place: LineStart = LineStart()
    sizes: tuple[Sizes, ...] = ()
    documents: int = 0
    tokens: int = 0
    left_out: int = 0


def state_path(prefix: str) -> Path:
    return Path(f"{prefix}.state.json")


def load_state(prefix: str) -> ConversionState | None:
    path = state_path(prefix)
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        found["place"] = LineStart(*found["place"])
        found["sizes"] = tuple(Sizes(*each) for each in found["sizes"])
        return ConversionState(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); --overwrite starts over") from None


def store_state(prefix: str, state: ConversionState) -> None:
    path = state_path(prefix)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump({"version": VERSION, **state._asdict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


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
        """Return a message if written data is now missing."""
        for path, size in zip(self._parts, sizes, strict=True):
            # The tokens file is renamed first.
            is_named = is_finishing and path is self._parts[0] and not path.exists()
            found = self._final("bin") if is_named else path
            have = found.stat().st_size if found.exists() else 0
            if have < size:
                return f"{found}: has {have} bytes of {size} that were written"
        return None

    def open(self, sizes: Sizes) -> None:
        """Open the files at the end of the safely written data and truncate the rest."""
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
        """Sizes including data that is not on the disk yet."""
        return Sizes(*(file.tell() for file in self._files))

    def sync(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()

    def finish(self) -> None:
        """Write the index and rename the files; can be repeated after a kill."""
        data, lengths, documents = self._parts
        index = Path(f"{self.prefix}.idx.part")
        with index.open("wb") as out:
            index_file.write(out, self._typecode, lengths, documents)
            out.flush()
            os.fsync(out.fileno())
        if data.exists():
            # An old index must never exist beside new tokens.
            self._final("idx").unlink(missing_ok=True)
            os.replace(data, self._final("bin"))
        os.replace(index, self._final("idx"))
        _sync_folder(data.parent)

    def clear(self) -> None:
        for path in (*self._parts, Path(f"{self.prefix}.idx.part")):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not supported by some network file systems
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
