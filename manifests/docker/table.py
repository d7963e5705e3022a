# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step time and memory of watched runs, as a table in Markdown, from their logs alone.

Steps, layout and batch are what `mwatch parse` reads; memory is what Megatron prints of its own
ranks, of one replica: all of the GPU's where --log-device-memory-used was given, else torch's part
without CUDA's (nvidia-smi shows 1 to 3 GiB more), which is marked with a `+`.
The step time is the median of the second half of the run, when clocks and caches have settled.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

_MEMORY = re.compile(
    r"\[Rank (\d+)\].*? memory \(MB\) .*?\| max reserved: ([\d.]+)"
    r"(?: \| total device memory used: ([\d.]+))?"
)
_COLUMNS = (
    "run", "GPUs", "TP PP CP DP", "micro, global batch", "steps", "ms a step", "tokens/s",
    "GiB by rank",
)  # fmt: skip
_HEAD = f"| {' | '.join(_COLUMNS)} |\n|{' --- |' * len(_COLUMNS)}"
_SECONDS = 600


class Memory(NamedTuple):
    """The most that a rank has told of."""

    gib: float
    is_whole: bool
    """Of the GPU, and not torch's part alone."""


class Row(NamedTuple):
    name: str
    world: int | None
    layout: tuple[int | None, ...]
    micro: int | None
    batch: int | None
    sequence: int | None
    steps: int
    milliseconds: float | None
    memory: dict[int, Memory]


def row_of(log: Path, name: str, mwatch: list[str]) -> Row | None:
    """None for a log without a step."""
    done = subprocess.run(
        [*mwatch, "parse", str(log)], capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [each for each in events if each["event"] == "iteration"]
    if not steps:
        return None
    given: dict[str, Any] = next((each for each in events if each["event"] == "arguments"), {})
    settled = [each["elapsed_ms"] for each in steps[len(steps) // 2 :] if each["elapsed_ms"]]
    kinds = ("tensor", "pipeline", "context", "data")
    return Row(
        name,
        given.get("world_size"),
        tuple(given.get(f"{kind}_parallel") for kind in kinds),
        given.get("micro_batch_size"),
        given.get("global_batch_size"),
        given.get("extra", {}).get("seq_length"),
        len(steps),
        statistics.median(settled) if settled else None,
        memory_in(log),
    )


def memory_in(log: Path) -> dict[int, Memory]:
    """The most of each rank."""
    most: dict[int, Memory] = {}
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            for rank, reserved, device in _MEMORY.findall(line):
                told = Memory(float(device or reserved) / 1024, bool(device))
                most[int(rank)] = max(most.get(int(rank), told), told)
    return most


def text_of(row: Row) -> str:
    step = row.milliseconds
    known = step and row.batch and row.sequence
    tokens = f"{row.batch * row.sequence / step * 1000:,.0f}" if known else "?"  # type: ignore[operator]
    ranks = ", ".join(
        f"{rank}: {each.gib:.1f}{'' if each.is_whole else '+'}"
        for rank, each in sorted(row.memory.items())
    )
    cells = (
        row.name,
        told(row.world),
        " ".join(told(each) for each in row.layout),
        f"{told(row.micro)}, {told(row.batch)}",
        str(row.steps),
        "?" if step is None else f"{step:.1f}",
        tokens,
        ranks or "?",
    )
    return f"| {' | '.join(cells)} |"


def told(number: int | None) -> str:
    """Not printed is not zero."""
    return "?" if number is None else str(number)


def logs_in(folder: Path) -> list[tuple[str, Path]]:
    """Runs of `mwatch run`, and plain logs."""
    if folder.is_file():
        return [(folder.stem, folder)]
    runs = [(each.parents[1].name, each) for each in folder.glob("*/volume/trainer.log")]
    return sorted(runs) + sorted((each.stem, each) for each in folder.glob("*.log"))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Step time and memory of watched runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="a folder of runs, or logs")
    parser.add_argument("--mwatch", default="mwatch", help="how to call it")
    given = parser.parse_args(words)
    logs = [found for each in given.runs for found in logs_in(each)]
    rows = [row_of(log, name, shlex.split(given.mwatch)) for name, log in logs]
    told_rows = [text_of(row) for row in rows if row is not None]
    if not told_rows:
        print(
            "table.py: no log with a step in it; run one of the experiments first", file=sys.stderr
        )
        return 1
    print("\n".join([_HEAD, *told_rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
