# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper's own few words, on stderr. Only trouble is worth one."""

from __future__ import annotations

import contextlib
import os

from mwatch_trainer.scrub import scrub_text

_MAX = 2000


def say(text: str) -> None:
    """Never raises, and says one line."""
    line = f"mwatch-run: {scrub_text(' '.join(text.split()))[:_MAX]}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode("utf-8", "backslashreplace"))
