# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a bundle that only its caller can give: what NCCL says twice, what the sidecar sees.

They are made in a thread from the beginning on, while the ranks write their dumps: to ask twice,
some seconds apart, then costs nothing. Whoever is not ready in time is written down as missing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from mwatch.act.evidence_parts import MAX_FILE_BYTES, Budget, Content, Missing, is_safe_name

Extra = Callable[[], Iterable[Content | Missing]]
MAX_PARTS = 64
_WHAT = "what the watcher itself sees"


class ExtraParts:
    def __init__(self, extra: Extra) -> None:
        self._ready: queue.SimpleQueue[Content | Missing | None] = queue.SimpleQueue()
        work = threading.Thread(target=self._make, args=(extra,), daemon=True)
        work.name = "mwatch-evidence-extra"
        work.start()

    def found(self, budget: Budget, seconds: float) -> Iterator[Content | Missing]:
        """What is ready within that time."""
        until = time.monotonic() + seconds
        while True:
            try:
                each = self._ready.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                yield Missing(f"a part of {_WHAT}", "it was not ready in time")
                return
            if each is None:
                return
            yield _bounded(each, budget)

    def _make(self, extra: Extra) -> None:
        """A fault of ours there must not cost the rest of the bundle."""
        try:
            for _, each in zip(range(MAX_PARTS), extra(), strict=False):
                self._ready.put(each)
        except Exception as error:
            self._ready.put(Missing(f"a part of {_WHAT}", f"{type(error).__name__}: {error}"))
        finally:
            self._ready.put(None)


def _bounded(each: Content | Missing, budget: Budget) -> Content | Missing:
    if isinstance(each, Missing):
        return each
    if not is_safe_name(each.name):
        return Missing(ascii(each.name)[:100], "it has an odd name")
    most = min(MAX_FILE_BYTES, budget.bytes)
    if len(each.data) > most and (each.is_binary or not most):
        return Missing(each.name, "it is too large" if budget.bytes else "the byte budget is spent")
    budget.take(min(len(each.data), most))
    if len(each.data) <= most:
        return each
    return each._replace(data=each.data[:most], is_cut=True)
