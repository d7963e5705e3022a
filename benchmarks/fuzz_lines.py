# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Batches of damaged log lines: the same for the same seed.

Three kinds: records of all trainers in turn, a steady run with little damage (it keeps the fast
way of the reader busy), and a container runtime's log with its header on each line.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.iteration_lines import Run
from benchmarks.measure import ROOT
from benchmarks.mutate import mutate, stretch

Record = list[bytes]
_SEEDS = Path(__file__).parent / "seeds.txt"
_CORPUS = ROOT / "tests" / "corpus"
_CORPUS_LINES = 12
_STRETCHED = 0.1
"""Share of the single lines."""
_STAMP = b"2026-03-01T00:17:09.669794202Z "


class Batch(NamedTuple):
    data: bytes
    lines: int
    mutated: int


def seed_records(examples: Iterable[str]) -> list[Record]:
    """Our own records, the examples of the catalogue, and runs of lines from the corpus."""
    blocks = _SEEDS.read_bytes().split(b"\n\n")
    records = [block.splitlines() for block in blocks if block.strip()]
    records += [[line.encode()] for line in examples]
    for log in sorted(_CORPUS.rglob("*.log")):
        lines = log.read_bytes().splitlines()
        records += [
            lines[start : start + _CORPUS_LINES] for start in range(0, len(lines), _CORPUS_LINES)
        ]
    return records


class Source:
    """Makes batch after batch from the records."""

    def __init__(self, seed: int, records: Sequence[Record]) -> None:
        self._chance = random.Random(seed)
        self._records = records

    def batch(self, mutations: int) -> Batch:
        """Thousands of lines for one reader, with about so many damaged ones."""
        kind = self._chance.choice((self._mixed, self._mixed, self._steady, self._container))
        return kind(mutations)

    def single(self) -> bytes:
        """One damaged line, with or without its newline."""
        line = mutate(self._chance, self._any_line(), self._any_line())
        if self._chance.random() < _STRETCHED:
            line = stretch(self._chance, self._any_line())
        return line + b"\n" if self._chance.random() < 0.8 else line

    def _any_line(self) -> bytes:
        return self._chance.choice(self._chance.choice(self._records))

    def _mixed(self, mutations: int) -> Batch:
        share = self._chance.choice((0.5, 0.8, 1.0))
        lines: list[bytes] = []
        mutated = 0
        while mutated < mutations:
            for line in self._chance.choice(self._records):
                mutated += self._add(lines, line, share)
        return self._join(lines, mutated)

    def _steady(self, mutations: int) -> Batch:
        share = self._chance.choice((0.05, 0.3))
        run = Run(self._chance, lines=10 * mutations, gaps=True)
        lines: list[bytes] = []
        mutated = 0
        while mutated < mutations // 20:
            mutated += self._add(lines, run.line().rstrip("\n").encode(), share)
        return self._join(lines, mutated)

    def _container(self, mutations: int) -> Batch:
        lines: list[bytes] = []
        mutated = 0
        while mutated < mutations:
            for line in self._chance.choice(self._records):
                stream = self._chance.choice((b"stdout ", b"stderr "))
                cut = self._chance.randrange(len(line) + 1) if self._chance.random() < 0.1 else 0
                if cut:
                    mutated += self._add(lines, _STAMP + stream + b"P " + line[:cut], 0.2)
                mutated += self._add(lines, _STAMP + stream + b"F " + line[cut:], 0.5)
        return self._join(lines, mutated)

    def _add(self, lines: list[bytes], line: bytes, share: float) -> int:
        damaged = self._chance.random() < share
        lines.append(mutate(self._chance, line, self._any_line()) if damaged else line)
        return damaged

    def _join(self, lines: Sequence[bytes], mutated: int) -> Batch:
        end = self._chance.choice((b"\n", b"\n", b"\n", b"\r\n"))
        data = end.join(lines) + (end if self._chance.random() < 0.8 else b"")
        return Batch(data, len(lines), mutated)
