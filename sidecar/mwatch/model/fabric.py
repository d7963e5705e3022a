# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One port of a network card that ranks speak over (RoCE, InfiniBand, EFA), as last read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MAX_PORTS = 64
MAX_ERRORS = 24


class FabricPort(NamedTuple):
    device: str
    """Card and port: `mlx5_0/1`."""
    is_up: bool | None
    """None: EFA's driver says so at all times, and some have no interface that would know."""
    received_bytes: int | None
    sent_bytes: int | None
    errors: Mapping[str, int]
    """Counters of trouble by the kernel's name for each, since the card was started."""
