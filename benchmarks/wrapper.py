# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether `mwatch-run` slows down a trainer that prints 200 MB a second.

The same program prints the same lines into the same sink, a pipe that somebody reads (as in a
container), bare and wrapped in turns, and takes its own time. `wrapper` prints by the clock, 200 MB
each second. `wrapper-busy` prints as fast as it can beside work that alone makes it about 200 MB/s:
there every microsecond that printing costs more is seen, and so is every other load of the machine.
The quickest of each is compared, for load only ever makes a run slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import ROOT, ChildFailed
from benchmarks.row import Row

TARGET_SLOWER = 0.05
SPEED = 200_000_000
_TURNS = 5
_BLOCK = 1 << 16
_LIMIT_SECONDS = 120.0
_MB = 1_000_000
_PRINTER = """
import os, sys, time, zlib
size, work, speed, report = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
line = b" [2026-01-01 00:00:00] iteration      610/  500000 | consumed samples:        19520 | " \\
       b"elapsed time per iteration (ms): 436.7 | learning rate: 5.9E-05 | lm loss: 6.0E+00 |\\n"
block = (line * (65536 // len(line) + 1))[:65535] + b"\\n"
began = time.perf_counter()
for number in range(1, size // len(block) + 1):
    for at in range(0, work, 4096): zlib.crc32(block[:4096])
    os.write(1, block)
    early = speed and number * len(block) / speed - (time.perf_counter() - began)
    if early > 0: time.sleep(early)
with open(report, "w") as file: file.write(str(time.perf_counter() - began))
"""


def row(size: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return _compared("wrapper", size, Path(folder), 0, SPEED, is_target=True)


def busy_row(size: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return _compared("wrapper-busy", size, Path(folder), _work(Path(folder)), 0)


def _compared(
    name: str, size: int, folder: Path, work: int, speed: int, is_target: bool = False
) -> Row:
    bare: list[float] = []
    wrapped: list[float] = []
    for _ in range(_TURNS):
        bare.append(_seconds(size, work, speed, folder, ()))
        wrapped.append(_seconds(size, work, speed, folder, _wrapper(folder)))
    slower = min(wrapped) / min(bare) - 1
    return Row(
        name,
        f"{size / min(wrapped) / _MB:.0f} MB/s",
        f"{size / min(bare) / _MB:.0f} MB/s",
        target=f"<= {TARGET_SLOWER:.0%} slower" if is_target else "",
        met=slower <= TARGET_SLOWER if is_target else None,
        note=f"{slower:+.1%}; best of {_TURNS} in turns; other: the bare command",
    )


def _work(folder: Path) -> int:
    """How much is to be done for a block, in bytes of a checksum, for about 200 MB/s alone."""
    size, some = 100 * _MB, 1 << 18
    blocks = size / _BLOCK
    without = min(_seconds(size, 0, 0, folder, ()) for _ in range(3)) / blocks
    with_it = min(_seconds(size, some, 0, folder, ()) for _ in range(3)) / blocks
    wanted = _BLOCK / SPEED - without
    return int(max(wanted / max(with_it - without, 1e-9), 0.0) * some)


def _wrapper(folder: Path) -> list[str]:
    return [sys.executable, "-m", "mwatch_trainer", "--dir", str(folder / "volume"), "--"]


def _seconds(size: int, work: int, speed: int, folder: Path, before: Sequence[str]) -> float:
    report = folder / "seconds"
    report.unlink(missing_ok=True)
    words = [*before, sys.executable, "-S", "-c", _PRINTER]
    words += [str(size), str(work), str(speed), str(report)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    printer = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    assert printer.stdout is not None
    reader = subprocess.Popen(["cat"], stdin=printer.stdout, stdout=subprocess.DEVNULL)
    printer.stdout.close()
    try:
        codes = (printer.wait(_LIMIT_SECONDS), reader.wait(_LIMIT_SECONDS))
    finally:
        printer.kill()
        reader.kill()
    if any(codes):
        raise ChildFailed(f"{' '.join(words[:4])} ended with {codes[0]}")
    return float(report.read_text())
