# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The communicators of a job, as NCCL's own RAS service told of them at one moment."""

from __future__ import annotations

from typing import NamedTuple


class Nccl(NamedTuple):
    communicators: int
    missing_ranks: int
    """That no longer answer, over all communicators."""
    mismatched: int
    """Communicators whose ranks have been at different counts for longer than a moment."""
    operations: int | None
    """Collectives that the slowest rank of each communicator has begun, summed; None: not told
    in this form of the answer."""
