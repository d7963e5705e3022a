# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.stand_in`: a stand-in for a trainer that needs only the standard library.

It trains nothing: a step sleeps and sums one number over all ranks. Its arguments, output lines and
faults are those of the small real trainer, and its processes are real: two ranks, a launcher that
ends all ranks when one fails, as torchrun does, and checkpoints that are zip files, as written by
`torch.save`.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from mwatch_gpt import arguments, progress
from mwatch_gpt.console import StepResult, TrainingLog, now, print_arguments, print_rank_0
from mwatch_gpt.console import print_datetime as print_datetime_after
from mwatch_gpt.fault_spec import FaultSchedule, Kind

_RANKS = 2
_SOCKETS = "MWATCH_STAND_IN_SOCKETS"
_NUMBER = struct.Struct("d")
_TRACKER = "latest_checkpointed_iteration.txt"
_FILE = "mp_rank_00/model_optim_rng.pt"
_MIN_STEP_SECONDS = 0.04
_BAD_STEPS_ARE_SLOWER = 10
"""Factor, so that a busy machine detects the NaN long before training ends."""
_GRACE_SECONDS = 2.0
_WAIT_FOR_LAUNCHER_SECONDS = 600.0
_SUPPORTED = frozenset({Kind.SIGSTOP, Kind.KILL, Kind.NAN, Kind.CORRUPT_CHECKPOINT})


def main() -> None:
    if numbers := os.environ.get(_SOCKETS):
        sockets = [socket.socket(fileno=int(number)) for number in numbers.split()]
        pretrain(_parsed(sys.argv[1:]), Group(sockets))
    else:
        sys.exit(launch(sys.argv[1:]))


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    args = arguments.parse(words)
    args.ckpt_format = "torch"
    args.min_step_seconds = max(args.min_step_seconds, _MIN_STEP_SECONDS)
    unknown = {each.partition("@")[0] for each in args.fault} - _SUPPORTED
    if unknown:
        sys.exit(f"mwatch_gpt.stand_in: it has no fault {min(unknown)}")
    return args


class Group:
    """The group of all ranks: rank 0 has one socket to each of the other ranks."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        self._is_first = os.environ["RANK"] == "0"

    def all_reduce(self, value: float = 0.0) -> float:
        if self._is_first:
            total = value + sum(self._receive(each) for each in self._sockets)
            for each in self._sockets:
                self._send(each, total)
            return total
        self._send(self._sockets[0], value)
        return self._receive(self._sockets[0])

    def _send(self, other: socket.socket, value: float) -> None:
        try:
            other.sendall(_NUMBER.pack(value))
        except OSError:
            _wait_for_launcher()

    def _receive(self, other: socket.socket) -> float:
        try:
            got = other.recv(_NUMBER.size, socket.MSG_WAITALL)
        except OSError:
            got = b""
        if len(got) < _NUMBER.size:
            _wait_for_launcher()
        return float(_NUMBER.unpack(got)[0])


def _wait_for_launcher() -> None:
    """Wait for the launcher to end this rank: another rank is gone, and the launcher knows why."""
    time.sleep(_WAIT_FOR_LAUNCHER_SECONDS)
    sys.exit(1)


class _Timers:
    """The part of Megatron's timers that the training log uses."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, name: str) -> _Timers:
        return self

    def elapsed(self, *, barrier: bool, reset: bool) -> float:
        seconds = time.monotonic() - self._since
        if reset:
            self._since = time.monotonic()
        return seconds

    def log(self, names: Sequence[str], **options: object) -> None:
        """Print nothing, like Megatron's timers for an empty list of names."""


def pretrain(args: argparse.Namespace, group: Group) -> None:
    def print_datetime(text: str) -> None:
        print_datetime_after(text, group.all_reduce)

    if args.rank == 0:
        text = "a stand-in: it trains nothing, and prints what Megatron prints"
        print(f"mwatch_gpt.stand_in: {text}", file=sys.stderr, flush=True)
    print_arguments(args)
    print_datetime("after megatron is initialized")
    first = load_checkpoint(args)
    print_datetime("after model, optimizer, and learning rate scheduler are built")
    print_datetime("after dataloaders are built")
    print_rank_0("done with setup ...")
    print_rank_0("training ...")
    print_datetime("before the start of training step")
    train(args, group, first)
    print_datetime("after training is done")


def train(args: argparse.Namespace, group: Group, first: int) -> None:
    faults = FaultSchedule(args)
    log = TrainingLog(args, _Timers(), None)
    args.consumed_train_samples = first * args.global_batch_size
    for iteration in range(first + 1, args.train_iters + 1):
        step = train_step(args, group, faults, iteration)
        args.consumed_train_samples += args.global_batch_size
        progress.iteration, progress.phase = iteration, "training"
        log.record(step, iteration, is_first=iteration == first + 1)
        if args.save and args.save_interval and iteration % args.save_interval == 0:
            save_checkpoint(args, group, faults, iteration)


def train_step(
    args: argparse.Namespace, group: Group, faults: FaultSchedule, iteration: int
) -> StepResult:
    if faults.take(Kind.SIGSTOP, iteration):
        os.kill(os.getpid(), signal.SIGSTOP)
    if faults.take(Kind.KILL, iteration):
        os.kill(os.getpid(), signal.SIGKILL)
    faults.take(Kind.NAN, iteration)
    chance = random.Random(iteration * args.world_size + args.rank)
    is_bad = any(fault.kind is Kind.NAN for fault in faults.begun)
    loss = math.nan if is_bad else 3.0 + 8.0 * math.exp(-iteration / 40) + chance.gauss(0, 0.03)
    loss = group.all_reduce(loss) / args.world_size
    time.sleep(args.min_step_seconds * (_BAD_STEPS_ARE_SLOWER if math.isnan(loss) else 1))
    return StepResult(
        losses={"lm loss": loss},
        learning_rate=args.lr,
        loss_scale=1.0,
        grad_norm=loss / 4,
        num_zeros=None,
        params_norm=None,
        is_skipped=False,
    )


def save_checkpoint(
    args: argparse.Namespace, group: Group, faults: FaultSchedule, iteration: int
) -> None:
    with progress.during("saving"):
        where = f"at iteration {iteration:7d} to {args.save}"
        print_rank_0(f"[{now()}] saving checkpoint {where} in {args.ckpt_format} format")
        if args.rank == 0:
            file = _file(args.save, iteration)
            file.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("archive/data.pkl", pickle.dumps({"iteration": iteration}))
            Path(args.save, _TRACKER).write_text(str(iteration), "utf-8")
            line = f"successfully saved checkpoint from iteration {iteration:7d} to {args.save}"
            print_rank_0(f"  [{now()}] {line} [ t 1/1, p 1/1 ]")
            if faults.take(Kind.CORRUPT_CHECKPOINT, iteration):
                os.truncate(file, file.stat().st_size // 2)
        group.all_reduce()


def load_checkpoint(args: argparse.Namespace) -> int:
    """Return the iteration from which to continue."""
    tracker = Path(args.load or "", _TRACKER)
    if not args.load or not (args.ckpt_step or tracker.exists()):
        print_rank_0(f"WARNING: could not find the metadata file {tracker}")
        print_rank_0("    will not load any checkpoints and will start from random")
        return 0
    iteration = args.ckpt_step or int(tracker.read_text("utf-8"))
    print_rank_0(f" loading checkpoint from {args.load} at iteration {iteration}")
    with zipfile.ZipFile(_file(args.load, iteration)) as archive:
        archive.getinfo("archive/data.pkl")
    line = f"  successfully loaded checkpoint from {args.load} [ t 1/1, p 1/1 ]"
    print_rank_0(f"{line} at iteration {iteration}")
    return int(iteration)


def _file(folder: str, iteration: int) -> Path:
    return Path(folder, f"iter_{iteration:07d}", _FILE)


def launch(words: Sequence[str]) -> int:
    """Start the ranks; end all when one fails or on a termination signal."""
    pairs = [socket.socketpair() for _ in range(_RANKS - 1)]
    ranks: list[subprocess.Popen[bytes]] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    try:
        for rank in range(_RANKS):
            ours = [here for here, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]
            ranks.append(_started(words, rank, [each.fileno() for each in ours]))
        for each in (end for pair in pairs for end in pair):
            each.close()
        return _watch(ranks)
    finally:
        _end(ranks)


def _started(words: Sequence[str], rank: int, sockets: Sequence[int]) -> subprocess.Popen[bytes]:
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(_RANKS)}
    own[_SOCKETS] = " ".join(map(str, sockets))
    line = [sys.executable, "-m", "mwatch_gpt.stand_in", *words]
    return subprocess.Popen(line, env={**os.environ, **own}, pass_fds=sockets)


def _watch(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [each.poll() for each in ranks]
        for rank, code in enumerate(codes):
            if code:
                print(_failure(rank, ranks[rank].pid, code), file=sys.stderr, flush=True)
                return 1
        if None not in codes:
            return 0
        time.sleep(0.02)


def _failure(rank: int, pid: int, code: int) -> str:
    """Format the failure report like torchrun."""
    traceback = f"Signal {-code} received by PID {pid}" if code < 0 else "<N/A>"
    return f"""
{"=" * 60}
mwatch_gpt.stand_in FAILED
{"-" * 60}
Root Cause (first observed failure):
[0]:
  time      : {time.strftime("%Y-%m-%d_%H:%M:%S")}
  host      : {socket.gethostname()}
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : {traceback}
{"=" * 60}"""


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in ranks:
        each.terminate()
    until = time.monotonic() + _GRACE_SECONDS
    for each in ranks:
        try:
            each.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()


if __name__ == "__main__":
    main()
