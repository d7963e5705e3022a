# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One line for the pod's log, with the time."""

from __future__ import annotations

import datetime
import sys


def say(text: str) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%H:%M:%S")
    print(f"{now} {text}", file=sys.stdout, flush=True)


def size(number: float) -> str:
    """In the unit that people read: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
