# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the output files that a user asks for: the path is checked before any long work, secrets
are scrubbed, and the write is atomic."""

from __future__ import annotations

import os
from pathlib import Path

from mwatch.errors import InputError
from mwatch.runtime.files import replace_file
from mwatch_trainer.scrub.scrubber import Scrubber

STORY = "story.json"
"""File name of the report in the folder of a watched run; `story_json` writes the file."""
_FIX = "name another file"


def check_target(file: Path, *suffixes: str, fix: str = _FIX) -> None:
    """Raise InputError if `file` cannot be written."""
    if file.is_dir():
        raise InputError(f"{file} is a folder; name a file in it")
    if suffixes and file.suffix not in suffixes:
        raise InputError(f"cannot write {file}: name it {' or '.join(suffixes)}")
    if not file.parent.is_dir():
        raise InputError(f"cannot write {file}: there is no folder {file.parent}; create it first")
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"cannot write {file}: no permission to write to its folder; {fix}")


def write_target(file: Path, data: bytes, *, fix: str = _FIX, is_clean: bool = False) -> None:
    """Write `data` atomically, with secrets scrubbed unless `is_clean`.

    `is_clean` is for a page, whose Content-Security-Policy contains the hashes of its scripts, and
    for files shipped with mwatch, which may be binary.
    """
    try:
        replace_file(file, data if is_clean else Scrubber().scrub(data), mode=0o666 & ~_umask())
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}; {fix}") from error


def _umask() -> int:
    """Return the umask. The OS offers no way to read it without setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
