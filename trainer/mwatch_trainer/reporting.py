# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `mwatch-run` reports to whoever started it: its exit code, and one line on stderr.

Exit codes in act mode: 0 finished or asked for; 1-127 permanent; 128-255 worth a restart. A signal
N is 128+N, so codes of our own lie above 192.
"""

from __future__ import annotations

import contextlib
import os

from mwatch_trainer.scrub.scrubber import scrub_text

USER_ERROR = 1
GIVE_UP = 93
EARLY_EXIT = 200
"""The child left with 0 before its last iteration, and nobody had asked."""
UNKNOWN_CAUSE = 201
"""The child failed, and nothing that it printed says that a restart is in vain."""
NOT_AGREED = 202
"""This wrapper could not begin with the others: no choice, or a checkpoint that is not seen."""
FENCED = 203
"""A newer attempt has begun elsewhere."""
RERUN = {16: 216, 17: 217}
"""Megatron's rerun state machine: resume to tell what it was; failed result validation."""
SIGNAL_BASE = 128
_MAX_CHARS = 2000


def say(text: str) -> None:
    """Never raises, and says one line."""
    line = f"mwatch-run: {scrub_text(' '.join(text.split()))[:_MAX_CHARS]}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode("utf-8", "backslashreplace"))
