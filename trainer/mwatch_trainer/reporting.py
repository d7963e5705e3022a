# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `mwatch-run` reports to its caller: an exit code, and lines on stderr.

Exit codes in act mode: 0 finished or stopped on request; 1-127 permanent; 128-255 worth a restart.
Signal N is 128+N, so mwatch's own codes are above 192.
"""

from __future__ import annotations

import contextlib
import os

from mwatch_trainer.scrub.scrubber import scrub_text

USER_ERROR = 1
GIVE_UP = 93
EARLY_EXIT = 200  # the command exited with 0 before its last iteration without a stop request
UNKNOWN_CAUSE = 201  # the command failed, and nothing in its output rules out a restart
NOT_AGREED = 202
"""This wrapper could not start with the others: no order arrived, or its checkpoint is not visible
on this node."""
FENCED = 203  # a newer attempt has started elsewhere
RERUN = {16: 216, 17: 217}
"""Exit codes of Megatron's rerun state machine: 16 resume to disambiguate; 17 failed validation."""
SIGNAL_BASE = 128
_MAX_CHARS = 2000


def report(text: str) -> None:
    """Print one scrubbed line to stderr. Never raises."""
    line = f"mwatch-run: {scrub_text(' '.join(text.split()))[:_MAX_CHARS]}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode("utf-8", "backslashreplace"))
