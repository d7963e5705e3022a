# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Output in Megatron's own format (core_v0.16), by the rank that prints it there.

Rank 0 prints for the job, the last rank prints the numbers. Every line is flushed: a line that
waits in a buffer looks like a hang.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from datetime import datetime

import torch.distributed


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def now() -> str:
    return datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")


def print_rank_0(text: str) -> None:
    if _rank() == 0:
        print(text, flush=True)


def print_rank_last(text: str) -> None:
    if _rank() == torch.distributed.get_world_size() - 1:
        print(text, flush=True)


def print_datetime(text: str) -> None:
    """Print a marker once every rank has come this far."""
    torch.distributed.barrier()
    print_rank_0(f"[{text}] datetime: {now()} ")


def set_up_logging(args: argparse.Namespace) -> None:
    """Log as Megatron does: to stdout, `LEVEL:logger:message`."""
    logging.basicConfig(stream=sys.stdout, level=args.logging_level)
    logging.getLogger("torch").setLevel(logging.WARNING)
    if args.rank:
        warnings.simplefilter("ignore")


def print_arguments(args: argparse.Namespace) -> None:
    print_rank_0(
        f"using world size: {args.world_size}, data-parallel size: {args.data_parallel_size}, "
        f"context-parallel size: 1, hierarchical context-parallel sizes: None, "
        f"tensor-model-parallel size: {args.tensor_model_parallel_size}, "
        f"pipeline-model-parallel size: 1"
    )
    if args.fp16 or args.bf16:
        print_rank_0(f"using {args.params_dtype} for parameters ...")
    print_rank_0("------------------------ arguments ------------------------")
    for name, value in sorted(vars(args).items()):
        print_rank_0(f"  {name} {'.' * (48 - len(name))} {value}")
    print_rank_0("-------------------- end of arguments ---------------------")
