# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a log and keeps what the mtail programs keep: ten fields, their last values, one sum.

The whole catalogue is on. The garbage collector is set as `mwatch parse` sets it. A run of lines
of one layout is asked for its last event and one column, as mtail keeps no more; the events in
between are found and checked, not built.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter

from benchmarks.ten_fields import FIELDS
from mwatch.config.catalogue import load
from mwatch.model.event import Event, Iteration
from mwatch.parse.fast_path.run import LineRun
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from mwatch.runtime.files import CHUNK

_LAST: dict[str, Callable[[Iteration], float | None]] = {
    name: attrgetter(name) for name in FIELDS if name not in ("lm_loss", "skipped")
}
_LAST["lm_loss"] = lambda step: step.losses.get("lm loss")


def read(file: str) -> dict[str, float]:
    values: dict[str, float] = {"skipped": 0}
    reader = Reader(Grammar(load(), None), file)
    gc.freeze()
    gc.set_threshold(100_000)
    with open(file, "rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            for batch in reader.batches(chunk):
                _keep(values, batch)
    _keep(values, reader.close())
    return values


def _keep(values: dict[str, float], batch: Sequence[Event]) -> None:
    if isinstance(batch, LineRun):
        values["skipped"] += sum(batch.column("skipped"))
        _keep_last(values, batch[-1])
        return
    for event in batch:
        if type(event) is Iteration:
            values["skipped"] += event.skipped or 0
            _keep_last(values, event)


def _keep_last(values: dict[str, float], step: Iteration) -> None:
    for name, value_of in _LAST.items():
        value = value_of(step)
        if value is not None:
            values[name] = value


if __name__ == "__main__":
    json.dump(read(sys.argv[1]), sys.stdout)
