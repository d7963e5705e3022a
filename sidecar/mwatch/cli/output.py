# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text to standard output, whatever its encoding, and whoever reads it."""

from __future__ import annotations

import os
import sys


def write(text: str) -> None:
    """A character that the terminal cannot show is escaped; a reader that left is no error."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        reader_left()


def reader_left() -> None:
    """After `| head`: the interpreter flushes again at exit and would complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
