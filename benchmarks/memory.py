# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The peak of memory of `mwatch parse -` on a stream of a gigabyte with very long lines.

The stream is made while it is read and is never stored.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import IO

from benchmarks.iteration_lines import Run
from benchmarks.make_logs import SEED
from benchmarks.measure import python, run
from benchmarks.noise import noise
from benchmarks.progress import Progress
from benchmarks.row import Row

TARGET_BYTES = 80 << 20
_MB = 1_000_000
_POOL_LINES = 20_000
_BLOCK_STEPS = 20
_LONG_LINES = 10


def stream(size: int) -> Iterator[bytes]:
    """About `size` bytes: 70 % of lines, ten lines of 1 % each, and 20 % without any newline."""
    chance = random.Random(SEED + 2)
    run_ = Run(chance, lines=10 * _MB)
    pool = noise(chance, run_.stamp()[:19], _POOL_LINES)
    for part in range(_LONG_LINES):
        left = size * 7 // 100
        while left > 0:
            block = _block(chance, run_, pool)
            left -= len(block)
            yield block
        yield from _long_line(size // 100, glued=run_ if part % 2 else None)
        yield b"\n"
    yield from _long_line(size // 5, glued=None)


def _block(chance: random.Random, run_: Run, pool: list[str]) -> bytes:
    lines: list[str] = []
    for _ in range(_BLOCK_STEPS):
        start = chance.randrange(len(pool) - 99)
        lines.append(run_.line())
        lines.extend(pool[start : start + 99])
    return "".join(lines).encode()


def _long_line(size: int, *, glued: Run | None) -> Iterator[bytes]:
    """A dumped tensor, or one with iteration lines of other writers in it."""
    row = b"[-0.0312,  0.1181, -0.0042,  0.0967,  nan, -0.0127], " * 1000
    while size > 0:
        piece = row + (glued.line().rstrip("\n").encode() if glued else b"")
        size -= len(piece)
        yield piece


def row(size: int) -> Row:
    def feed(pipe: IO[bytes]) -> None:
        progress = Progress("sending the stream, bytes", size)
        sent = 0
        for block in stream(size):
            pipe.write(block)
            sent += len(block)
            progress.tell(sent)

    usage = run(python("-m", "mwatch", "parse", "-"), feed=feed, keep_output=False)
    return Row(
        "memory",
        f"{usage.peak_bytes / (1 << 20):.1f} MiB",
        target=f"<= {TARGET_BYTES >> 20} MiB",
        met=usage.peak_bytes <= TARGET_BYTES,
        note=f"{size // _MB} MB through a pipe, {size / _MB / usage.cpu_seconds:.0f} MB per CPU s",
    )
