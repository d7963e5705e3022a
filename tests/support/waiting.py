# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Wait for what another process or thread does, instead of sleeping for a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds; far more than any of it takes, for a machine that is busy."""


def until(
    condition: Callable[[], Any],
    seconds: float = PATIENCE,
    *,
    ignoring: tuple[type[Exception], ...] = (),
) -> Any:
    """Return what `condition` returns as soon as that is true; fail after `seconds`.

    An error in `ignoring` counts as "not yet".
    """
    end = time.monotonic() + seconds
    while True:
        try:
            if found := condition():
                return found
        except ignoring:
            pass
        assert time.monotonic() < end, f"did not happen within {seconds:g} s"
        time.sleep(0.01)
