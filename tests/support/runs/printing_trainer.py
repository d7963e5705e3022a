# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer that trains nothing: it prints what Megatron prints and fails when it is told to.

It stands in for a real one where only processes, signals, lines, folders and exit codes matter;
the real small trainer has tests of its own. Runs alone: `python printing_trainer.py [flags of
Megatron] [--then WHAT]`. A `--state` file remembers that the failure has happened. With `--save`
it leaves checkpoints that are whole and hold nothing. Once there is a `--hurry` file, steps take no
time: so a test lets it go on for as long as it takes, and then come to its end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

LINE = (
    " [2026-11-15 09:00:00.000000] iteration {step:8d}/{total:8d} | consumed samples: {done:12d} |"
    " elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.000000E-04 |"
    " global batch size:     8 |{loss} loss scale: 1.0 | grad norm: {norm} |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)
QUOTED = """exit code 1
Rank 3 crashed with exit code -9 in my run
command terminated with exit code 137
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pretrain_gpt.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_09:00:00
  host      : node-0
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4711)
  error_file: <N/A>
============================================================"""
"""Ends of other runs, as a sample of training data or a note of the user may hold them."""
TRACKER = "latest_checkpointed_iteration.txt"


def main() -> None:
    args = _arguments()
    progress = types.ModuleType("mwatch_gpt.progress")
    sys.modules["mwatch_gpt.progress"] = progress
    first = _loaded(args.load, args.ckpt_step)
    print("[before the start of training step] datetime: 2026-11-15 09:00:00 ", flush=True)
    is_bad = False
    for step in range(first + 1, args.train_iters + 1):
        progress.__dict__.update(iteration=step - 1, phase="training")
        is_in_a_hurry = args.hurry is not None and args.hurry.exists()
        seconds = 0.0 if is_in_a_hurry else args.step_seconds
        train_step(seconds * (10 if is_bad else 1))  # time to be found out
        if step == args.at and args.then and not has_happened(args.state):
            is_bad = args.then == "nan"
            for what in args.then.split(","):
                fail(what)
        print_line(step, args.train_iters, args.step_seconds, is_bad)
        if args.save is not None and step % args.save_interval == 0:
            _save(args.save, step)
    print("[after training is done] datetime: 2026-11-15 09:00:10 ", flush=True)
    sys.exit(args.exit_code)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--train-iters", type=int, default=20)
    add("--step-seconds", type=float, default=0.02)
    add("--then", default="")
    add("--at", type=int, default=10)
    add("--state", type=Path)
    add("--hurry", type=Path)
    add("--exit-code", type=int, default=0)
    add("--save", type=Path)
    add("--load", type=Path)
    add("--save-interval", type=int, default=4)
    add("--ckpt-step", type=int)
    return parser.parse_known_args()[0]


def train_step(seconds: float) -> None:
    time.sleep(seconds)


def print_line(step: int, total: int, seconds: float, is_bad: bool) -> None:
    loss = "" if is_bad else f" lm loss: {3.0 + 1.0 / step:.6E} |"
    norm = "nan" if is_bad else "1.000"
    ms = seconds * 1000
    print(LINE.format(step=step, total=total, done=8 * step, ms=ms, loss=loss, norm=norm))
    sys.stdout.flush()


def _loaded(load: Path | None, wanted: int | None) -> int:
    if load is None or not (load / TRACKER).exists():
        return 0
    step = wanted or int((load / TRACKER).read_text())
    print(f" loading distributed checkpoint from {load} at iteration {step}")
    print(f"  successfully loaded checkpoint from {load} [ t 1/1, p 1/1 ] at iteration {step}")
    return step


def _save(save: Path, step: int) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is run as a file
    from support.builders import checkpoint as checkpoint_builders

    print(f"saving checkpoint at iteration {step:7d} to {save} in torch_dist format", flush=True)
    folder = save / f"iter_{step:07d}"
    if not folder.exists():
        checkpoint_builders.torch_dist(save, step, {"__0_0.distcp": 1000})
    checkpoint_builders.track(save, step)
    said = f"  successfully saved checkpoint from iteration {step:7d} to {save} [ t 1/1, p 1/1 ]"
    print(said, flush=True)


def has_happened(state: Path | None) -> bool:
    if state is None:
        return False
    if state.exists():
        return True
    state.write_text("it has happened\n", "utf-8")
    return False


def fail(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "raise":
        raise ModuleNotFoundError("No module named 'flash_attn'")
    elif what == "wait":
        time.sleep(600)
    elif what == "leave":
        sys.exit(0)
    elif what == "quote":
        print(QUOTED, flush=True)
    elif what == "done":
        print("[after training is done] datetime: 2026-11-15 09:00:00", flush=True)
    elif what == "deaf":
        _be_deaf()
    elif what == "unfinished":
        sys.stderr.write("RuntimeError: it ends in the middle of a")
        sys.stderr.flush()
        os._exit(3)


def _be_deaf() -> None:
    """It and a process of its own, in a session of its own, want to hear of no end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True)


if __name__ == "__main__":
    main()
