# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lets the faults that were asked for happen, each once in the life of a job.

Every fault is the real thing: the signal is sent, the collective is not joined, the device is full.
A marker file, written before the fault, keeps a resumed run from failing in the same way again.
NaN, overflow and slowness last as long as the process, since nothing but a restart mends them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mwatch_gpt import fault_kinds, fault_spec
from mwatch_gpt.fault_spec import Fault, Kind

# Larger than any gradient of ours can shrink: the product overflows half precision at every scale.
_OVERFLOW = 2.0**60


class Injector:
    def __init__(self, args: argparse.Namespace) -> None:
        asked = [fault_spec.parse(text) for text in args.fault]
        self._mine = [each for each in asked if each.concerns(args.rank, args.world_size)]
        self._state = Path(args.fault_state) if args.fault_state else None
        self._rank = args.rank
        self._batch = args.global_batch_size
        self._begun: set[Fault] = set()

    def before_sample(self, number: int) -> None:
        """Asked by the data loader, by the number of the sample: workers run ahead."""
        if fault := self._take(Kind.DATA, number // self._batch + 1):
            fault_kinds.wait(fault.lasts_seconds)

    def first_step(self, step: int) -> None:
        if fault := self._take(Kind.HANG_FIRST_STEP, step):
            fault_kinds.wait(fault.lasts_seconds)

    def before_step(self, step: int, model: Any) -> None:
        for kind, act in fault_kinds.SUDDEN.items():
            if fault := self._take(kind, step):
                act(fault.lasts_seconds)
        if self._take(Kind.NAN, step):
            fault_kinds.poison(model)
        self._take(Kind.LOSS_SCALE_COLLAPSE, step)
        self._take(Kind.SLOW, step)
        for fault in self._begun:
            if fault.kind is Kind.SLOW:
                fault_kinds.compute(fault.lasts_seconds)

    def before_collective(self, step: int) -> None:
        if fault := self._take(Kind.HANG_COLLECTIVE, step):
            fault_kinds.wait(fault.lasts_seconds)

    def loss_factor(self) -> float:
        """What the loss is multiplied with before the backward pass."""
        collapses = any(fault.kind is Kind.LOSS_SCALE_COLLAPSE for fault in self._begun)
        return _OVERFLOW if collapses else 1.0

    def in_evaluation(self, step: int) -> None:
        if fault := self._take(Kind.HANG_EVAL, step):
            fault_kinds.wait(fault.lasts_seconds)

    @contextlib.contextmanager
    def writing(self, path: str, step: int) -> Iterator[None]:
        """Around the writing of one file of a checkpoint."""
        if fault := self._take(Kind.HANG_SAVE, step):
            fault_kinds.wait(fault.lasts_seconds)
        if self._take(Kind.HALF_CHECKPOINT, step):
            fault_kinds.die_in_the_middle_of(path)
        is_full = self._take(Kind.DISK_FULL, step) is not None
        if is_full:
            fault_kinds.fill_device_of(path)
        try:
            yield
        finally:
            if is_full:
                Path(path).unlink(missing_ok=True)

    def saved(self, folder: Path, step: int) -> None:
        if self._take(Kind.CORRUPT_CHECKPOINT, step):
            fault_kinds.cut_a_shard(folder)

    def exit_code(self, step: int) -> int | None:
        """What to leave with after this step, if at all."""
        if self._take(Kind.EXIT_16, step):
            return 16
        return 0 if self._take(Kind.EXIT_0, step) else None

    def _take(self, kind: Kind, step: int) -> Fault | None:
        """The fault of this kind that begins now, if one does."""
        for fault in self._mine:
            if fault.kind is kind and fault.is_due(step):
                self._mine.remove(fault)
                if self._is_first_time(fault):
                    self._begun.add(fault)
                    return fault
                return None
        return None

    def _is_first_time(self, fault: Fault) -> bool:
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
        # On the error stream: nobody shall take it for something that Megatron prints.
        print(f"mwatch_gpt: fault {fault.name} on rank {self._rank}", file=sys.stderr, flush=True)
        return True
