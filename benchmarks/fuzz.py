# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Feeds damaged lines to the reader: it must not raise, and must say the same every time.

Each batch is read three times: whole, whole again, and in chunks of random sizes. The events,
encoded as `mwatch parse` prints them, and the line count must be the same. Prints a JSON report.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from types import FrameType

from benchmarks.fuzz_lines import Source, seed_records
from benchmarks.progress import Progress
from benchmarks.shrink import shrink
from mwatch.config.catalogue import load
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from mwatch.replay.events import encode

_BATCH = 5000
_SHRUNK = 3
"""So many failing inputs of a kind are made small; the rest is only counted."""
_TRIES = 8
_CHEAP_BYTES = 40_000
_PASSES = 3
_SLOW_SECONDS = 1.0
_SLOW_SECONDS_PER_BYTE = 2e-5
"""Who needs longer than both together hangs on some input; healthy is a hundredth of it."""
_RUN = re.compile(rb"(.{1,3}?)\1{30,}", re.DOTALL)


@dataclass
class Report:
    lines: int = 0
    mutated: int = 0
    readers: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    smallest: list[dict[str, str]] = field(default_factory=list)


class TooSlow(Exception):
    """A pattern backtracks."""


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlow("the time limit")


class Fuzzer:
    def __init__(self, grammar: Grammar, report: Report) -> None:
        self._grammar = grammar
        self._report = report

    def check(self, data: bytes, seed: int) -> None:
        began = time.process_time()
        problem = self._problem(data, [seed])
        self._report.read_seconds += time.process_time() - began
        self._report.read_bytes += _PASSES * len(data)
        self._report.readers += _PASSES
        if problem is None:
            return
        count = self._report.failures.get(problem, 0)
        self._report.failures[problem] = count + 1
        if count < _SHRUNK:
            small = shrink(data, lambda part: self._problem(part, _seeds(part)) == problem)
            shown = _abridged(small)
            self._report.smallest.append({"problem": problem, "input": shown})
            print(f"{problem}: {shown}", file=sys.stderr)

    def _problem(self, data: bytes, seeds: Iterable[int]) -> str | None:
        limit = _SLOW_SECONDS + _SLOW_SECONDS_PER_BYTE * len(data)
        whole = self._outcome([data], limit)
        if whole.startswith("raised"):
            return whole
        if self._outcome([data], limit) != whole:
            return "a second pass differs"
        if any(self._outcome(chunks(data, seed), limit) != whole for seed in seeds):
            return "chunks differ from the whole"
        return None

    def _outcome(self, parts: Iterable[bytes], limit: float) -> str:
        """A hash of all events, or the exception."""
        digest = hashlib.sha256()
        reader = Reader(self._grammar, "fuzz")
        signal.setitimer(signal.ITIMER_VIRTUAL, limit)
        try:
            for part in parts:
                digest.update(b"".join(map(encode, reader.feed(part))))
            digest.update(b"".join(map(encode, reader.close())))
        except Exception as error:  # what a fuzzer is for
            return f"raised {type(error).__name__}: {error}"[:200]
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return f"{digest.hexdigest()} {reader.lines}"


def chunks(data: bytes, seed: int) -> Iterator[bytes]:
    """Chunks of sizes from one byte to thousands; seed 0 stands for single bytes."""
    chance = random.Random(seed)
    position = 0
    while position < len(data):
        size = chance.randint(1, chance.choice((1, 8, 300, 5000))) if seed else 1
        yield data[position : position + size]
        position += size


def _abridged(data: bytes) -> str:
    """Long runs of the same one to three bytes as a product."""
    runs = _RUN.sub(lambda found: b"<%r * %d>" % (found[1], len(found[0]) // len(found[1])), data)
    return repr(runs[:2000])


def _seeds(data: bytes) -> range:
    """How to chunk a part of a failing input: every cut is tried where that is cheap."""
    return range(_TRIES) if len(data) < _CHEAP_BYTES else range(1, _TRIES)


def fuzz(mutations: int, singles: int, seed: int) -> Report:
    catalogue = load()
    report = Report()
    fuzzer = Fuzzer(Grammar(catalogue, None), report)
    records = seed_records(example for entry in catalogue for example in entry.examples)
    source = Source(seed, records)
    progress = Progress("damaged lines", mutations)
    while report.mutated < mutations:
        batch = source.batch(min(_BATCH, mutations))
        report.lines += batch.lines
        report.mutated += batch.mutated
        fuzzer.check(batch.data, 1 + report.lines)
        progress.tell(report.mutated)
    for number in range(singles):
        line = source.single()
        report.lines += 1
        report.mutated += 1
        fuzzer.check(line, 1 + number)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=1_000_000)
    parser.add_argument("--singles", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, _give_up)
    report = fuzz(options.mutations, options.singles, options.seed)
    json.dump(asdict(report), sys.stdout)


if __name__ == "__main__":
    main()
