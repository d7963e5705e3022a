# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Looks every two seconds whether a newer attempt has begun. From a thread: folders can hang."""

from __future__ import annotations

import threading

from mwatch_trainer.asks import FENCE, Ask, Asks
from mwatch_trainer.fence import Fence

_EVERY_SECONDS = 2.0


class FenceWatch:
    def __init__(self, fence: Fence, asks: Asks) -> None:
        self._fence, self._asks = fence, asks
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="mwatch-fence", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY_SECONDS):
            why = self._fence.is_stale()
            if why is not None and not self._is_over.is_set():
                self._asks.put(Ask(FENCE, why, 0.0))
                return
