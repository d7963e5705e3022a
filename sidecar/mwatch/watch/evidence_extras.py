# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watcher adds to a bundle of evidence: NCCL's word twice, and what it sees itself.

RAS is asked twice, some seconds apart: counts that stand still are told only by two answers. Who
does not answer is written down as missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from mwatch import json_codec
from mwatch.evidence.bundle import Content, Missing
from mwatch.sources.nccl_ras import NcclRas
from mwatch.watch.collector import VolumeCollector

_ASK_SECONDS = 6.0
_BETWEEN_SECONDS = 2.0


class EvidenceExtras:
    def __init__(
        self,
        live: VolumeCollector,
        snapshot: Callable[[], bytes] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`snapshot`: all that the watcher would tell a controller now."""
        self._live = live
        self._snapshot = snapshot
        self._sleep = sleep

    def __call__(self) -> Iterator[Content | Missing]:
        """Takes seconds; in a thread of the bundle."""
        if self._snapshot is not None:
            yield Content("snapshot.json", self._snapshot())
        gpus = self._live.gpus
        if gpus:
            yield Content("gpus-seen.json", msgspec.json.format(json_codec.encode(gpus)))
        else:
            yield Missing("gpus-seen.json", "no GPU can be read")
        if self._live.more.ras is not None:
            yield from self._twice(self._live.more.ras)

    def _twice(self, ras: NcclRas) -> Iterator[Content | Missing]:
        for number in (1, 2):
            name = f"ras-{number}.txt"
            try:
                yield Content(name, ras.raw(_ASK_SECONDS).encode("utf-8", "replace"))
            except OSError as error:
                yield Missing(name, str(error)[:200])
                if number == 1:
                    yield Missing("ras-2.txt", "as the first time")
                return
            if number == 1:
                self._sleep(_BETWEEN_SECONDS)
