# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's arguments: Megatron's names and meanings, with defaults for a laptop.

Only flags that this trainer supports are accepted; a flag that would be ignored is rejected. A flag
with type None is a switch. Numbers keep Megatron's defaults; model and data sizes do not.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mwatch_gpt import fault_spec


class Flag(NamedTuple):
    name: str
    type: type | None
    default: Any
    help: str
    options: tuple[str, ...] | None = None


MODEL = (
    Flag("--num-layers", int, 2, "transformer layers"),
    Flag("--hidden-size", int, 128, "width of the model"),
    Flag("--ffn-hidden-size", int, None, "width of the feed-forward layers (None: 4 times)"),
    Flag("--num-attention-heads", int, 4, "attention heads"),
    Flag("--seq-length", int, 64, "tokens in a sample"),
    Flag("--max-position-embeddings", int, None, "positions (None: the sequence length)"),
    Flag("--hidden-dropout", float, 0.1, "dropout of the residual stream"),
    Flag("--attention-dropout", float, 0.1, "dropout of the attention weights"),
    Flag("--init-method-std", float, 0.02, "standard deviation of the first weights"),
    Flag("--make-vocab-size-divisible-by", int, 128, "padding of the vocabulary"),
    Flag("--untie-embeddings-and-output-weights", None, False, "two weights instead of one"),
    Flag("--tensor-model-parallel-size", int, 1, "ranks that share one layer"),
    Flag(
        "--transformer-impl",
        str,
        "local",
        "whose layers: Megatron's own or NVIDIA's on a GPU",
        ("local", "transformer_engine"),
    ),
)
PRECISION = (
    Flag("--fp16", None, False, "half precision and a dynamic loss scale, also on CPU"),
    Flag("--bf16", None, False, "bfloat16, also on CPU"),
    Flag("--loss-scale", float, None, "a fixed loss scale instead of a dynamic one"),
    Flag("--initial-loss-scale", float, 2.0**32, "first dynamic loss scale"),
    Flag("--min-loss-scale", float, 1.0, "smallest dynamic loss scale"),
    Flag("--loss-scale-window", int, 1000, "steps without overflow before it doubles"),
    Flag("--hysteresis", int, 2, "overflows before it is halved"),
)
TRAINING = (
    Flag("--micro-batch-size", int, 4, "samples of one forward pass"),
    Flag("--global-batch-size", int, None, "samples of one step (None: one pass per rank)"),
    Flag("--train-iters", int, 100, "iterations in all"),
    Flag("--seed", int, 1234, "of the weights, the dropout and the order of the data"),
    Flag("--exit-interval", int, None, "leave after an iteration that this divides"),
    Flag("--exit-duration-in-mins", float, None, "leave after so many minutes"),
    Flag("--exit-signal-handler", None, False, "on SIGTERM save, then leave with 0"),
    Flag("--skip-train", None, False, "only evaluate"),
    Flag(
        "--rerun-mode", str, "validate_results",
        "what follows a bad result", ("disabled", "validate_results", "report_stats"),
    ),
    Flag("--distributed-backend", str, None, "nccl on GPUs, gloo on CPU", ("nccl", "gloo")),
    Flag("--distributed-timeout-minutes", float, 10.0, "for a collective"),
    Flag("--distributed-timeout-seconds", float, None, "the same, finer; ours, not Megatron's"),
    Flag("--min-step-seconds", float, 0.0, "sleep the rest of a shorter step; ours too"),
)  # fmt: skip
OPTIMIZER = (
    Flag("--lr", float, 1e-3, "learning rate"),
    Flag("--min-lr", float, 0.0, "learning rate at the end"),
    Flag("--lr-decay-style", str, "linear", "its way down", ("constant", "linear", "cosine")),
    Flag("--lr-decay-iters", int, None, "iterations of the way down (None: all)"),
    Flag("--lr-warmup-iters", int, 0, "iterations of the way up"),
    Flag("--lr-warmup-init", float, 0.0, "where the way up begins"),
    Flag("--weight-decay", float, 0.01, "weight decay"),
    Flag("--clip-grad", float, 1.0, "gradient norm to clip at"),
    Flag("--adam-beta1", float, 0.9, "first Adam coefficient"),
    Flag("--adam-beta2", float, 0.999, "second Adam coefficient"),
    Flag("--adam-eps", float, 1e-8, "Adam's epsilon"),
)
DATA = (
    Flag("--split", str, "90,5,5", "train, validation and test parts"),
    Flag("--data-cache-path", str, None, "folder of the sample index (None: beside the data)"),
    Flag("--num-workers", int, 0, "processes that load data, per rank"),
    Flag("--eval-iters", int, 10, "iterations of an evaluation"),
    Flag("--eval-interval", int, 1000, "iterations between evaluations"),
)
CHECKPOINT = (
    Flag("--save", str, None, "folder to save to"),
    Flag("--load", str, None, "folder to load from"),
    Flag("--save-interval", int, None, "iterations between saves"),
    Flag("--save-retain-interval", int, None, "keep only saves of iterations that this divides"),
    Flag("--ckpt-step", int, None, "load this iteration instead of the newest"),
    Flag("--pretrained-checkpoint", str, None, "weights to begin with when --load has nothing"),
    Flag("--finetune", None, False, "load weights only and begin at iteration 0"),
    Flag("--no-load-optim", None, False, "do not load the optimizer"),
    Flag("--no-load-rng", None, False, "do not load the random state"),
    Flag("--no-save-optim", None, False, "do not save the optimizer"),
    Flag("--no-save-rng", None, False, "do not save the random state"),
    Flag("--exit-on-missing-checkpoint", None, False, "leave when --load has nothing"),
    Flag("--async-save", None, False, "write the checkpoint beside the training"),
    Flag("--ckpt-format", str, "torch_dist", "the one there is", ("torch_dist",)),
)
LOGGING = (
    Flag("--log-interval", int, 100, "iterations between lines"),
    Flag("--log-throughput", None, False, "add the TFLOP/s"),
    Flag("--log-params-norm", None, False, "add the norm of the weights"),
    Flag("--log-num-zeros-in-grad", None, False, "add the zeros in the gradients"),
    Flag("--log-progress", None, False, "keep progress.txt beside the checkpoints"),
    Flag("--timing-log-level", int, 0, "detail of the timers, 0 to 2"),
    Flag("--timing-log-option", str, "minmax", "form of the timers", ("max", "minmax", "all")),
    Flag("--tensorboard-dir", str, None, "folder of TensorBoard's events"),
    Flag("--tensorboard-log-interval", int, 1, "iterations between events"),
    Flag("--log-validation-ppl-to-tensorboard", None, False, "add the perplexity"),
    Flag("--logging-level", int, 20, "of Python's logging"),
)
GROUPS = {
    "model": MODEL, "precision": PRECISION, "training": TRAINING, "optimizer": OPTIMIZER,
    "data": DATA, "checkpoint": CHECKPOINT, "logging": LOGGING,
}  # fmt: skip


def add_to(parser: argparse.ArgumentParser) -> None:
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.type is None:
                group.add_argument(flag.name, action="store_true", help=flag.help)
            else:
                group.add_argument(
                    flag.name,
                    type=flag.type,
                    default=flag.default,
                    choices=flag.options,
                    help=flag.help,
                )
    _add_irregular(parser)


def _add_irregular(parser: argparse.ArgumentParser) -> None:
    """Add list arguments, switches that disable something, and flags that Megatron lacks."""
    parser.add_argument(
        "--no-check-for-nan-in-loss-and-grad",
        dest="check_for_nan_in_loss_and_grad",
        action="store_false",
        help="go on when the loss is NaN",
    )
    parser.add_argument(
        "--iterations-to-skip", nargs="+", type=int, default=[], help="pass over their data"
    )
    parser.add_argument(
        "--data-path", nargs="*", default=None, help="prefixes of .bin/.idx (None: a text of ours)"
    )
    parser.add_argument(
        "--fp8",
        "--fp8-format",
        nargs="?",
        const="hybrid",
        choices=("e4m3", "hybrid"),
        help="needs --transformer-impl transformer_engine on a GPU",
    )
    kinds = [f"{kind}: {text}." for kind, text in fault_spec.HELP.items()]
    group = parser.add_argument_group("faults", "\n".join(kinds))
    group.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND@STEP[:rank=R][:seconds=S]",
        help="let this happen once; may be given again, also in MWATCH_GPT_FAULT",
    )
    group.add_argument(
        "--fault-state",
        default=None,
        help="folder that remembers what happened, so that a restart passes (None: beside --save)",
    )


FAULT_VARIABLE = "MWATCH_GPT_FAULT"
_EXAMPLE = "torchrun --nproc-per-node 2 -m mwatch_gpt --train-iters 200 --save ck --load ck"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m mwatch_gpt",
        usage="%(prog)s [option ...]",
        description="Trains a small GPT with Megatron-core, on CPU (gloo) or GPUs (NCCL).",
        epilog=f"Example: {_EXAMPLE}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add_to(parser)
    args = parser.parse_args(argv)
    try:
        _complete(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def _complete(args: argparse.Namespace) -> None:
    """Derive values from other arguments and the launcher's variables. Raises ValueError."""
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
        args.check_for_nan_in_loss_and_grad = False  # the scale is found by overflows
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
    for flags in GROUPS.values():
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
