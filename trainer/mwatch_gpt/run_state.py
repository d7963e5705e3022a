# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What one training run is made of, handed from function to function."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

from mwatch_gpt.async_save import AsyncSaves
from mwatch_gpt.faults import Injector
from mwatch_gpt.progress_log import ProgressLog
from mwatch_gpt.signals import SignalFlag


@dataclass(slots=True)
class RunState:
    args: argparse.Namespace
    model: Any
    """In its data-parallel wrapper."""
    config: Any
    optimizer: Any
    schedule: Any
    timers: Any
    faults: Injector
    progress_log: ProgressLog
    signal_flag: SignalFlag
    saves: AsyncSaves = field(default_factory=AsyncSaves)
    iteration: int = 0
    """Finished iterations."""
    flops: float = 0.0
    """Floating-point operations so far, over all attempts."""

    saved_at: int | None = None
    """Iteration of the last save of this process."""

    @property
    def microbatches(self) -> int:
        args = self.args
        together: int = args.micro_batch_size * args.data_parallel_size
        return int(args.global_batch_size // together)

    @property
    def bare_model(self) -> Any:
        inner = self.model.module
        return inner.module if hasattr(inner, "module") else inner
