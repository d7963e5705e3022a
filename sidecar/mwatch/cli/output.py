# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text to standard output, whatever its encoding, and whoever reads it; without secrets."""

from __future__ import annotations

import os
import sys


def write(text: str) -> None:
    """A character that the terminal cannot show is escaped; a reader that left is no error."""
    from mwatch.app.clean import clean  # not for --help, which is to be quick

    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(clean(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        reader_left()


def reader_left() -> None:
    """After `| head`: the interpreter flushes again at exit and would complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
