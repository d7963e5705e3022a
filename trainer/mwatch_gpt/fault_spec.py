# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The syntax of `--fault KIND@STEP[:rank=R][:seconds=S]`; imports no torch."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


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
"""Injected at the next save or evaluation from the step on."""
_ALL_RANKS = frozenset({Kind.EXIT_16, Kind.EXIT_0})
_FIRST_RANK = frozenset({Kind.CORRUPT_CHECKPOINT})
_FOREVER_SECONDS = 86_400.0
_SLOW_SECONDS = 0.5
_FORM = re.compile(r"(?P<kind>[a-z0-9-]+)@(?P<step>\d{1,9})(?P<options>(?::[a-z]+=[0-9.]+)*)")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    kind: Kind
    step: int
    rank: int | None  # none: the kind's default
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
