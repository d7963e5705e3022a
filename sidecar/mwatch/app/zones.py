# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Time zones, as far as two clocks that differ show one: by whole quarters of an hour."""

from __future__ import annotations

QUARTER = 900.0
_WIDEST = 14 * 3600.0


def zone_step(seconds: float, tolerance: float) -> float:
    """The multiple of a quarter of an hour that `seconds` is; 0 where it is none."""
    nearest = round(seconds / QUARTER) * QUARTER
    is_zone = abs(nearest) <= _WIDEST and abs(seconds - nearest) <= tolerance
    return nearest if is_zone else 0.0
