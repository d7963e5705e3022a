# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The last events of each GPU, with their times, and the thread that waits for them.

Several are kept, and not the last one: an Xid that is the cause comes a moment before those
that are its consequences.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

from mwatch_trainer.nvml_contract import Broken, Calls, Lost, Unclear

_KEPT = 8
_AGAIN_SECONDS = (1.0, 30.0)
"""A wait that fails, as it does when a GPU falls off the bus, is tried again at once: the others
are still there. One that fails at every try is tried ever more rarely."""
_STOP_SECONDS = 5.0


class GpuEvents:
    def __init__(self) -> None:
        self._xids: dict[int, deque[tuple[int, float]]] = {}
        self._others: dict[int, deque[tuple[str, float]]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, nvml: Calls, devices: list[Any]) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(nvml, devices, self._over), name="mwatch-xid", daemon=True
        )
        self._thread.start()

    def stop(self) -> bool:
        """Whether nobody waits for events any more; False: the wait hangs."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
        return self._thread is None or not self._thread.is_alive()

    def of(self, index: int) -> dict[str, Any]:
        xids, others = self._xids.get(index, ()), self._others.get(index, ())
        xid, xid_at = xids[-1] if xids else (None, None)
        return {
            "xid": xid,
            "xid_at": xid_at,
            "xids": [list(each) for each in tuple(xids)],
            "events": [list(each) for each in tuple(others)],
        }

    def _watch(self, nvml: Calls, devices: list[Any], over: threading.Event) -> None:
        shortest, longest = _AGAIN_SECONDS
        pause = shortest
        while not over.is_set():
            began = time.monotonic()
            with contextlib.suppress(Broken, Lost, Unclear):  # whoever samples sees and says them
                nvml.watch(devices, self._tell, over.is_set)
            if time.monotonic() - began > longest:
                pause = shortest
            over.wait(pause)
            pause = min(2 * pause, longest)

    def _tell(self, index: int, name: str, number: int) -> None:
        if name == "xid":
            self._xids.setdefault(index, deque(maxlen=_KEPT)).append((number, time.time()))
        else:
            self._others.setdefault(index, deque(maxlen=_KEPT)).append((name, time.time()))
