# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The syntax of `--fault KIND@STEP[:rank=R][:seconds=S]`, and which fault is due; imports no torch.

A marker file, written before the fault, prevents a resumed run from failing the same way again.
"""

from __future__ import annotations

import argparse
import enum
import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path


class Kind(enum.StrEnum):
    HANG_COLLECTIVE = "hang-collective"
    SIGSTOP = "sigstop"
    GIL = "gil"
    DATA = "data"
    HANG_SAVE = "hang-save"
    HANG_EVAL = "hang-eval"
    HANG_FIRST_STEP = "hang-first-step"
    KILL = "kill"
    NAN = "nan"
    LOSS_SCALE_COLLAPSE = "loss-scale-collapse"
    SLOW = "slow"
    OOM = "oom"
    CORRUPT_CHECKPOINT = "corrupt-checkpoint"
    HALF_CHECKPOINT = "half-checkpoint"
    DISK_FULL = "disk-full"
    EXIT_16 = "exit16"
    EXIT_0 = "exit0"


HELP = {
    Kind.HANG_COLLECTIVE: "a rank does not join the gradient all-reduce",
    Kind.SIGSTOP: "a rank stops itself with SIGSTOP",
    Kind.GIL: "a rank holds the GIL in C code",
    Kind.DATA: "a rank waits in its data loader",
    Kind.HANG_SAVE: "a rank waits while it writes its part of a checkpoint",
    Kind.HANG_EVAL: "a rank waits in an evaluation",
    Kind.HANG_FIRST_STEP: "a rank waits in the first step of the process",
    Kind.KILL: "a rank is gone by SIGKILL",
    Kind.NAN: "a weight becomes NaN, and stays so until a restart from an older checkpoint",
    Kind.LOSS_SCALE_COLLAPSE: "gradients overflow at every step until a restart (needs --fp16)",
    Kind.SLOW: "a rank computes S seconds more per step, until a restart",
    Kind.OOM: "a rank asks for more memory than there is",
    Kind.CORRUPT_CHECKPOINT: "a shard of the checkpoint just saved is cut in half",
    Kind.HALF_CHECKPOINT: "a rank is killed in the middle of a save",
    Kind.DISK_FULL: "the device of the checkpoints has no space left for one save",
    Kind.EXIT_16: "all ranks save and exit 16, as after a result that was rejected",
    Kind.EXIT_0: "all ranks exit 0 before the training is done",
}

_FROM_STEP_ON = frozenset(
    {
        Kind.HANG_SAVE, Kind.HANG_EVAL, Kind.HANG_FIRST_STEP,
        Kind.CORRUPT_CHECKPOINT, Kind.HALF_CHECKPOINT, Kind.DISK_FULL,
    }
)  # fmt: skip
"""Injected at the first opportunity from the step on, such as the next save or evaluation."""
_ALL_RANKS = frozenset({Kind.EXIT_16, Kind.EXIT_0})
_FIRST_RANK = frozenset({Kind.CORRUPT_CHECKPOINT})
_FOREVER_SECONDS = 86_400.0
_SLOW_SECONDS = 0.5
_FORM = re.compile(r"(?P<kind>[a-z0-9-]+)@(?P<step>\d{1,9})(?P<options>(?::[a-z]+=[0-9.]+)*)")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    kind: Kind
    step: int
    rank: int | None  # None: the kind's default
    seconds: float | None

    @property
    def name(self) -> str:
        return f"{self.kind}@{self.step}" + ("" if self.rank is None else f".rank={self.rank}")

    @property
    def lasts_seconds(self) -> float:
        if self.seconds is not None:
            return self.seconds
        return _SLOW_SECONDS if self.kind is Kind.SLOW else _FOREVER_SECONDS

    def concerns(self, rank: int, world_size: int) -> bool:
        if self.rank is not None:
            return rank == self.rank
        if self.kind in _ALL_RANKS:
            return True
        return rank == (0 if self.kind in _FIRST_RANK else world_size - 1)

    def is_due(self, step: int) -> bool:
        return step >= self.step if self.kind in _FROM_STEP_ON else step == self.step


def parse(text: str) -> InjectedFault:
    """Parse one fault. Raises ValueError with a message for the user."""
    found = _FORM.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not KIND@STEP[:rank=R][:seconds=S]")
    if found["kind"] not in list(Kind):
        raise ValueError(f"unknown fault {found['kind']!r}: one of {', '.join(Kind)}")
    options = dict(option.split("=") for option in found["options"].split(":")[1:])
    if unknown := options.keys() - {"rank", "seconds"}:
        raise ValueError(f"unknown option {min(unknown)!r} of a fault: rank or seconds")
    try:
        rank = int(options["rank"]) if "rank" in options else None
        seconds = float(options["seconds"]) if "seconds" in options else None
    except ValueError:
        raise ValueError(f"{text!r} has a number that cannot be read") from None
    return InjectedFault(Kind(found["kind"]), int(found["step"]), rank, seconds)


def split(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,]+", text) if part]


class FaultSchedule:
    """The faults of this rank; each is taken once in the lifetime of a job."""

    def __init__(self, args: argparse.Namespace) -> None:
        requested = [parse(text) for text in args.fault]
        self._mine = [each for each in requested if each.concerns(args.rank, args.world_size)]
        self._state = Path(args.fault_state) if args.fault_state else None
        self._rank = args.rank
        self.begun: set[InjectedFault] = set()

    def take(self, kind: Kind, step: int) -> InjectedFault | None:
        for fault in self._mine:
            if fault.kind is kind and fault.is_due(step):
                self._mine.remove(fault)
                if self._is_first_time(fault):
                    self.begun.add(fault)
                    return fault
                return None
        return None

    def _is_first_time(self, fault: InjectedFault) -> bool:
        if self._state is None:
            return True
        self._state.mkdir(parents=True, exist_ok=True)
        marker = self._state / f"{fault.name}.by-rank-{self._rank}"
        try:
            handle = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            file.write(f"{time.time():.3f} {os.getpid()}\n")
            file.flush()
            os.fsync(file.fileno())
        # On stderr, so that it is not mistaken for Megatron's output.
        print(f"mwatch_gpt: fault {fault.name} on rank {self._rank}", file=sys.stderr, flush=True)
        return True
