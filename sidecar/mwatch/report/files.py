# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes for its user: checked before long work, without secrets, whole or
not at all."""

from __future__ import annotations

import os
from pathlib import Path

from mwatch.errors import InputError
from mwatch.runtime.files import replace_file
from mwatch_trainer.scrub.scrubber import Scrubber

STORY = "story.json"
"""The report of a run that mwatch watched, in the folder of the run; `story_json` writes it."""
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
    """`is_clean`: nothing is to be scrubbed any more, as in a page, whose policy names its scripts
    by their hashes, or in a file that comes with mwatch, which may be no text."""
    try:
        replace_file(file, data if is_clean else Scrubber().scrub(data), mode=0o666 & ~_umask())
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}; {fix}") from error


def _umask() -> int:
    """It can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
