# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The signals that ask a long-running part of mwatch to end, as one event."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set by the first signal; a second one changes nothing, for the end is quick."""
    asked = threading.Event()

    def came(number: int, frame: FrameType | None) -> None:
        asked.set()

    before = {each: signal.signal(each, came) for each in _SIGNALS}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
