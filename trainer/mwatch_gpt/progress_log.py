# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`progress.txt` beside the checkpoints (`--log-progress`): one line a start, one a save.

Append-only over all attempts, so it also tells how often a job was started.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import datetime
from pathlib import Path

NAME = "progress.txt"
_STAMP = "%Y-%m-%d %H:%M:%S"


class ProgressLog:
    """Written by rank 0; does nothing elsewhere, or where it was not asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        is_wanted = args.log_progress and args.save and args.rank == 0
        self._path = Path(args.save) / NAME if is_wanted else None
        self._ranks = args.world_size
        self._tokens_per_sample = args.seq_length
        self._started = time.time()
        self._flops_at_start = 0.0

    def begin(self, flops: float) -> None:
        self._flops_at_start = flops
        self._append("Starting job")

    def saved(self, iteration: int, flops: float, samples: int, *, is_async: bool) -> None:
        """Where the write goes on beside the training, this is only its beginning."""
        if self._path is None:
            return
        job = self._rate(flops - self._flops_at_start, self._started)
        ever = self._rate(flops, self._first_start())
        what = "Saving async checkpoint" if is_async else "Saved checkpoint"
        self._append(
            f"{what}\tIteration: {iteration}\tJob throughput: {job:.1f} TFLOP/s/GPU\t"
            f"Cumulative throughput: {ever:.1f} TFLOP/s/GPU\t"
            f"Floating-point operations: {flops:.2e}\t"
            f"Tokens (in billions): {samples * self._tokens_per_sample / 1e9:.2f}"
        )

    def written(self, iteration: int) -> None:
        """An asynchronous save is complete."""
        self._append(f"Saved async checkpoint\tIteration: {iteration}")

    def _rate(self, flops: float, since: float) -> float:
        return float(flops / (max(time.time() - since, 1e-3) * 1e12 * self._ranks))

    def _first_start(self) -> float:
        assert self._path is not None
        with self._path.open() as file:
            stamp = file.readline().partition("\t")[0]
        return float(datetime.strptime(stamp, _STAMP).timestamp())

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        job = os.environ.get("SLURM_JOB_ID", "")
        stamp = datetime.now().strftime(_STAMP)
        with self._path.open("a") as file:
            file.write(f"{stamp}\tJob ID: {job}\t# GPUs: {self._ranks}\t{text}\n")
