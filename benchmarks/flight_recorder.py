# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What it costs to read and compare the flight recordings of a large job.

    PYTHONPATH=sidecar:trainer:tests python benchmarks/flight_recorder.py [RANKS] [RECORDS]

Plays a job of 2,048 ranks in which one does not come, writes a dump of 2,000 records for each (the
older ones are alike on all ranks), then reads them one by one and compares them.
"""

from __future__ import annotations

import resource
import sys
import time

from mwatch.flight_recorder.analysis import analyse
from mwatch.flight_recorder.dump import read_dump
from support.builders.flight import Flight, layout, steps
from support.builders.flight_format import pickled

_STEPS = 6
_CALLS = 20


def main(ranks: int = 2048, records: int = 2000) -> None:
    culprit = ranks // 3
    flight = Flight(layout(tp=8, dp=ranks // 8), stops={culprit: _CALLS}).play(steps(_STEPS))
    dumps = {}
    reading = 0.0
    size = 0
    for rank in range(ranks):
        data = pickled(_long(flight, rank, records))
        size += len(data)
        began = time.process_time()
        dumps[rank] = read_dump(data, rank)
        reading += time.process_time() - began
    before = time.process_time()
    found = analyse(dumps)
    comparing = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    named = found.blamed[0].rank if found.blamed else None
    print(f"{ranks} dumps of {records} records, {size / 1e6:.0f} MB")
    print(f"read      {reading:8.1f} s, {1e3 * reading / ranks:.0f} ms each")
    print(f"compared  {comparing:8.1f} s: rank {named} named, rank {culprit} did not come")
    print(f"memory    {memory:8.0f} MiB at most, with the job that was played")


def _long(flight: Flight, rank: int, records: int) -> dict[str, object]:
    """The recording, with older records before it that are all over."""
    document = flight.dump(rank)
    entries = document["entries"]
    missing = records - _CALLS
    past = dict(next(each for each in entries if each["state"] == "completed"))
    for each in entries:
        each["record_id"] += missing
        each["collective_seq_id"] += missing
    older = [past | {"record_id": n, "collective_seq_id": n} for n in range(1, missing + 1)]
    return {**document, "entries": [*older, *entries]}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
