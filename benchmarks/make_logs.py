# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the logs that the benchmarks read: the same bytes for the same seed, kept in a cache.

`iterations` holds iteration lines only. `noisy` holds 1 % of them, and less than 0.1 % of other
events. The stream for the memory measurement is never stored.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.iteration_lines import Run
from benchmarks.noise import noise
from benchmarks.progress import Progress

SEED = 20260301
_SHARE = 100
"""One line in so many is an iteration line."""
_PROGRESS_LINES = 10_000
_SOURCES = ("make_logs.py", "iteration_lines.py", "noise.py")
_DASHES = "-" * 104 + "\n"
_TIMERS = (
    "forward-backward",
    "forward-compute",
    "backward-compute",
    "batch-generator",
    "all-grads-sync",
    "optimizer-inner-step",
    "optimizer",
)


def iterations(lines: int) -> Iterator[str]:
    """Iteration lines of one stable layout."""
    run = Run(random.Random(SEED), lines=lines)
    return (run.line() for _ in range(lines))


def noisy(lines: int) -> Iterator[str]:
    """One iteration line, then 99 others; the fields of the iteration lines may be absent."""
    chance = random.Random(SEED + 1)
    steps = lines // _SHARE
    run = Run(chance, lines=steps, gaps=True)
    for step in range(steps):
        yield run.line()
        events = _events(run, chance, step)
        quiet = noise(chance, run.stamp()[:19], _SHARE - 1 - len(events))
        place = chance.randrange(len(quiet))
        yield from quiet[:place]
        yield from events
        yield from quiet[place:]


def _events(run: Run, chance: random.Random, step: int) -> list[str]:
    if step % 100 == 50:
        return _save(run, chance)
    if step % 150 == 75:
        loss = 2.0 + chance.random() / 10.0
        result = f" validation loss at iteration {run.iteration} | lm loss value: {loss:.6E} | "
        return [_DASHES, f"{result}lm loss PPL: {2.7182818**loss:.6E} | \n", _DASHES]
    if step % 250 == 120:
        rows = (f"    {name} ".ljust(52, ".") + ": " + _pair(chance) for name in _TIMERS)
        return ["INFO:megatron.core.timers:(min, max) time across ranks (ms):\n", *rows]
    if step % 250 == 240:
        where = f"[rank{chance.randrange(64)}]:[W301 {run.stamp()[11:]} ProcessGroupNCCL.cpp:1538]"
        return [
            f"{where} Warning: WARNING: destroy_process_group() was not called before program "
            "exit, which can leak resources. (function operator())\n"
        ]
    return []


def _pair(chance: random.Random) -> str:
    low = 2000.0 * chance.random()
    return f"({low:.2f}, {low + 20.0 * chance.random():.2f})\n"


def _save(run: Run, chance: random.Random) -> list[str]:
    where = f"iteration {run.iteration:7d} to /checkpoints/gpt"
    began = f"[{run.stamp()}] saving checkpoint at {where} in torch_dist format\n"
    run.wait(10.0 + 5.0 * chance.random())
    return [
        began,
        f"  [{run.stamp()}] successfully saved checkpoint from {where} [ t 1/8, p 1/4 ]\n",
    ]


_MAKERS: dict[str, Callable[[int], Iterator[str]]] = {"iterations": iterations, "noisy": noisy}


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mwatch" / "benchmarks"


def make_log(name: str, lines: int) -> Path:
    """The log of that name and size; written unless the cache has it from this same generator."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{lines}-{_generator_hash()}.log"
    if not path.exists():
        aside = path.with_suffix(f".{os.getpid()}.part")
        try:
            _write(aside, name, lines)
            for old in folder.glob(f"{name}-{lines}-*.log"):
                old.unlink()
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
    return path


def _generator_hash() -> str:
    here = Path(__file__).parent
    texts = b"".join((here / source).read_bytes() for source in _SOURCES)
    return hashlib.sha256(texts).hexdigest()[:12]


def _write(path: Path, name: str, lines: int) -> None:
    progress = Progress(f"writing {name}.log, lines", lines)
    with path.open("w", encoding="utf-8", newline="\n", buffering=1 << 20) as out:
        for count, line in enumerate(_MAKERS[name](lines), 1):
            out.write(line)
            if count % _PROGRESS_LINES == 0 or count == lines:
                progress.tell(count)
