# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What became of one request; apart from what sends it, which is dear to import."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    TAKEN = "taken"
    LATER = "later"
    """It may be taken another time."""
    REFUSED = "refused"
    """The same bytes will never be taken."""
