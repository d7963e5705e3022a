# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report page as a file: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mwatch.errors import InputError

_SUFFIXES = (".html", ".htm")


def check_target(file: Path) -> None:
    """Before a long replay: InputError where the page could not be written."""
    if file.is_dir():
        raise InputError(f"{file}: is a folder; name a file in it with --out")
    if file.suffix not in _SUFFIXES:
        raise InputError(f"{file}: name it .html, for that is what is written")
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it first")
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"{file}: its folder may not be written to; name another with --out")


def write_page(page: str, file: Path) -> int:
    """Returns its bytes."""
    check_target(file)
    data = page.encode("utf-8", "replace")
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(data)
            os.chmod(name, 0o644)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        mend = "name another place with --out"
        raise InputError(f"{file}: cannot be written ({error.strerror}); {mend}") from error
    return len(data)
