# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of the trainer: Megatron's names and meanings, with defaults for a laptop.

Only what this trainer can do is accepted: a flag that would be ignored is refused.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from mwatch_gpt import argument_groups, fault_spec

FAULT_VARIABLE = "MWATCH_GPT_FAULT"
_EXAMPLE = "torchrun --nproc-per-node 2 -m mwatch_gpt --train-iters 200 --save ck --load ck"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Leaves by SystemExit(2), with one line, where the arguments make no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m mwatch_gpt",
        usage="%(prog)s [option ...]",
        description="Trains a small GPT with Megatron-core, on CPU (gloo) or GPUs (NCCL).",
        epilog=f"Example: {_EXAMPLE}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    argument_groups.add_to(parser)
    args = parser.parse_args(argv)
    try:
        _complete(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def _complete(args: argparse.Namespace) -> None:
    """Fills in what follows from other arguments and from the launcher. Raises ValueError."""
    args.rank = int(os.environ.get("RANK", "0"))
    args.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    args.world_size = int(os.environ.get("WORLD_SIZE", "1"))
    _refuse_less_than_one(args)
    _complete_layout(args)
    _complete_batch(args)
    _refuse_a_bad_split(args.split)
    if args.fp16 and args.bf16:
        raise ValueError("--fp16 and --bf16 exclude each other")
    kind = "float16" if args.fp16 else "bfloat16" if args.bf16 else "float32"
    args.params_dtype = f"torch.{kind}"
    if args.fp16 and args.loss_scale is None:
        args.check_for_nan_in_loss_and_grad = False  # an overflow is how the scale is found
    if args.lr_decay_iters is None:
        args.lr_decay_iters = args.train_iters
    if args.ffn_hidden_size is None:
        args.ffn_hidden_size = 4 * args.hidden_size
    if args.max_position_embeddings is None:
        args.max_position_embeddings = args.seq_length
    args.iterations_to_skip = sorted(set(args.iterations_to_skip))
    args.consumed_train_samples = args.consumed_valid_samples = args.skipped_train_samples = 0
    _complete_faults(args)


def _refuse_less_than_one(args: argparse.Namespace) -> None:
    may_be_zero = {"eval_iters", "num_workers", "lr_warmup_iters", "timing_log_level", "seed"}
    for flags in argument_groups.GROUPS.values():
        for flag in flags:
            name = flag.name.removeprefix("--").replace("-", "_")
            if flag.type is not int or (value := getattr(args, name)) is None:
                continue
            if value < (0 if name in may_be_zero else 1):
                raise ValueError(f"{flag.name} {value} is too small")


def _complete_layout(args: argparse.Namespace) -> None:
    tensor = args.tensor_model_parallel_size
    args.pipeline_model_parallel_size = args.context_parallel_size = 1
    if args.world_size % tensor:
        raise ValueError(f"{args.world_size} ranks cannot be split into groups of {tensor}")
    args.data_parallel_size = args.world_size // tensor
    for name in ("hidden_size", "num_attention_heads"):
        if getattr(args, name) % tensor:
            raise ValueError(f"--{name.replace('_', '-')} must be a multiple of {tensor}")
    if args.hidden_size % args.num_attention_heads:
        raise ValueError("--hidden-size must be a multiple of --num-attention-heads")


def _refuse_a_bad_split(split: str) -> None:
    try:
        parts = [float(part) for part in split.split(",")]
    except ValueError:
        parts = []
    if len(parts) > 3 or not parts or min(parts) < 0 or parts[0] <= 0:
        raise ValueError(f"--split {split} is not three shares like 90,5,5, the first above zero")


def _complete_batch(args: argparse.Namespace) -> None:
    together = args.micro_batch_size * args.data_parallel_size
    if args.global_batch_size is None:
        args.global_batch_size = together
    if args.global_batch_size % together:
        raise ValueError(
            f"--global-batch-size {args.global_batch_size} is not a multiple of "
            f"--micro-batch-size times the data-parallel size, {together}"
        )


def _complete_faults(args: argparse.Namespace) -> None:
    args.fault += fault_spec.split(os.environ.get(FAULT_VARIABLE, ""))
    for fault in map(fault_spec.parse, args.fault):
        if fault.kind is fault_spec.Kind.LOSS_SCALE_COLLAPSE and not args.fp16:
            raise ValueError("loss-scale-collapse needs --fp16: nothing else scales the loss")
        if fault.rank is not None and fault.rank >= args.world_size:
            raise ValueError(f"{fault.name}: there are {args.world_size} ranks")
    if args.fault_state is None and args.save is not None:
        args.fault_state = str(Path(args.save).absolute().parent / "faults")
