# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer that trains nothing: it prints what Megatron prints and fails when it is told to.

It stands in for a real one where only processes, signals, lines and exit codes matter; the real
small trainer has tests of its own. Runs alone: `python printing_trainer.py [flags of Megatron]
[--then WHAT]`. A `--state` file remembers that the failure has happened.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import types
from pathlib import Path

LINE = (
    " [2026-11-15 09:00:00.000000] iteration {step:8d}/{total:8d} | consumed samples: {done:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 |"
    " global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.000 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--train-iters", type=int, default=20)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--then", default="")
    parser.add_argument("--at", type=int, default=10)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--exit-code", type=int, default=0)
    args, _ = parser.parse_known_args()
    progress = types.ModuleType("mwatch_gpt.progress")
    sys.modules["mwatch_gpt.progress"] = progress
    print("[before the start of training step] datetime: 2026-11-15 09:00:00 ", flush=True)
    for step in range(1, args.train_iters + 1):
        progress.__dict__.update(iteration=step - 1, phase="training")
        train_step(args.step_seconds)
        loss = 3.0 + 1.0 / step
        ms = args.step_seconds * 1000
        print(LINE.format(step=step, total=args.train_iters, done=8 * step, ms=ms, loss=loss))
        sys.stdout.flush()
        if step == args.at and args.then and not _has_happened(args.state):
            _fail(args.then)
    print("[after training is done] datetime: 2026-11-15 09:00:10 ", flush=True)
    sys.exit(args.exit_code)


def train_step(seconds: float) -> None:
    time.sleep(seconds)


def _has_happened(state: Path | None) -> bool:
    if state is None:
        return False
    if state.exists():
        return True
    state.write_text("it has happened\n", "utf-8")
    return False


def _fail(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise ModuleNotFoundError("No module named 'flash_attn'")
    elif what == "wait":
        time.sleep(600)


if __name__ == "__main__":
    main()
