# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer of `benchmarks.kills`: random bytes on stdout, lines of Megatron on stderr.

It records how many bytes it could write, one line for each attempt in `--sent`. SIGUSR1 ends the
probe's thread inside it. Run as a file, in the trainer's place.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

CHUNK = 1 << 16
_LINE = (
    " [2026-11-15 09:00:00.000000] iteration {step:8d}/{total:8d} | consumed samples: {done:12d} |"
    " elapsed time per iteration (ms): 100.0 | learning rate: 1.000000E-04 | global batch size:"
    "     8 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)
_TRACKER = "latest_checkpointed_iteration.txt"


def stream(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def end_probe(_number: int, _frame: object) -> None:
    for each in threading.enumerate():
        if "mwatch" in each.name and each.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(each.ident), ctypes.py_object(SystemExit)
            )


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--sent", type=Path, required=True)
    add("--seed", type=int, required=True)
    add("--bytes", type=int, required=True)
    add("--train-iters", type=int, default=40)
    add("--step-seconds", type=float, default=0.1)
    add("--save", type=Path, required=True)
    args = parser.parse_known_args()[0]
    signal.signal(signal.SIGUSR1, end_probe)
    data = memoryview(stream(args.seed, args.bytes))
    place = _claim(args.sent)
    first = _loaded(args.save)
    print("[before the start of training step] datetime: 2026-11-15 09:00:00", file=sys.stderr)
    sent, part = 0, -(-len(data) // (args.train_iters - first or 1))
    for step in range(first + 1, args.train_iters + 1):
        time.sleep(args.step_seconds)
        until = len(data) if step == args.train_iters else min(sent + part, len(data))
        while sent < until:
            sent += os.write(1, data[sent : min(sent + CHUNK, until)])
            _note(args.sent, place, sent)
        text = _LINE.format(step=step, total=args.train_iters, done=8 * step, loss=3 + 1 / step)
        print(text, file=sys.stderr, flush=True)
        if step % 5 == 0:
            _save(args.save, step)
    print("[after training is done] datetime: 2026-11-15 09:00:10", file=sys.stderr, flush=True)
    (args.sent.parent / "done").touch()


def _claim(path: Path) -> int:
    lines = path.read_text().split() if path.exists() else []
    _replace(path, [*lines, "0"])
    return len(lines)


def _note(path: Path, place: int, sent: int) -> None:
    lines = path.read_text().split()
    _replace(path, [*lines[:place], str(sent)])


def _replace(path: Path, lines: list[str]) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_text("\n".join(lines))
    os.replace(new, path)


def _loaded(save: Path) -> int:
    try:
        return int((save / _TRACKER).read_text())
    except (OSError, ValueError):
        return 0


def _save(save: Path, step: int) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from support.builders import checkpoint

    if not (save / f"iter_{step:07d}").exists():
        checkpoint.torch_dist(save, step, {"__0_0.distcp": 1000})
    checkpoint.track(save, step)


if __name__ == "__main__":
    main()
