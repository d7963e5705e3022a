# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The writer of TensorBoard's events: on the last rank, where the losses are, as Megatron's."""

from __future__ import annotations

import argparse
from typing import Any


def open_writer(args: argparse.Namespace) -> Any:
    """None where none was asked for, on the other ranks, and where the package is missing."""
    if not args.tensorboard_dir or args.rank != args.world_size - 1:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print(
            "WARNING: TensorBoard writing requested but is not available "
            "(pip install tensorboard), no TensorBoard logs will be written.",
            flush=True,
        )
        return None
    print("> setting tensorboard ...", flush=True)
    return SummaryWriter(log_dir=args.tensorboard_dir)
