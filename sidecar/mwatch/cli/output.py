# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text to standard output, whatever its encoding, and whoever reads it; without secrets.

Text for people and files, without secrets: what the commands put between a log and their output.

A log that was recorded without mwatch holds whatever the trainer printed.
"""

from __future__ import annotations

import os
import sys

from mwatch_trainer.scrub.scrubber import scrub_text


def write(text: str) -> None:
    """A character that the terminal cannot show is escaped; a reader that left is no error."""

    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(clean(text).encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        reader_left()


def reader_left() -> None:
    """After `| head`: the interpreter flushes again at exit and would complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def clean(text: str) -> str:
    return scrub_text(text)
