# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a log into events and prints the ten fields that the mtail program keeps too.

The whole catalogue is on and every event is made, but none is written. The garbage collector is
set as `mwatch parse` sets it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterable
from operator import attrgetter

from benchmarks.ten_fields import FIELDS
from mwatch.app.catalogue import load
from mwatch.model.event import Event, Iteration
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader

_CHUNK = 1 << 18
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
        while chunk := stream.read(_CHUNK):
            _keep(values, reader.feed(chunk))
    _keep(values, reader.close())
    return values


def _keep(values: dict[str, float], events: Iterable[Event]) -> None:
    steps = [event for event in events if type(event) is Iteration]
    values["skipped"] += sum([step.skipped or 0 for step in steps])
    for name, value_of in _LAST.items():
        printed = (value for step in reversed(steps) if (value := value_of(step)) is not None)
        last = next(printed, None)
        if last is not None:
            values[name] = last


if __name__ == "__main__":
    json.dump(read(sys.argv[1]), sys.stdout)
