# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The exit codes of `mwatch-run` in act. 0 finished or asked for; 1-127 permanent; 128-255 worth
a restart. A signal N is 128+N, so codes of our own lie above 192.
"""

from __future__ import annotations

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
