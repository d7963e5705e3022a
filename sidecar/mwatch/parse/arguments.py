# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The argument block that Megatron prints at start: the parallel layout and the intervals.

Only named arguments are kept: the block has hundreds, and some carry secrets or user paths that
nobody asked for. A newer release prints long names with two blanks instead of dots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Arguments, Event, Scalar
from mwatch.parse.context import MAX_TEXT, Block, Context, Recogniser
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import scalar

_OPEN = re.compile(r"-{6,} arguments -{6,}")
_CLOSE = re.compile(r"-{6,} end of arguments -{6,}")
_ENTRY = re.compile(r"\s*([A-Za-z_]\w{0,99}) (?:\.+ | )(.*)")
_VERSION = re.compile(r"> Megatron-Core version \.+ (\S{1,40})")
_MAX_ENTRIES = 4000

_NAMES = {
    "world_size": "world_size",
    "tensor_model_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
    "data_parallel_size": "data_parallel",
    "log_interval": "log_interval",
    "save": "save",
    "load": "load",
    "save_interval": "save_interval",
    "eval_interval": "eval_interval",
    "train_iters": "train_iters",
    "exit_interval": "exit_interval",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "async_save": "async_save",
    # names of v2.x and of the DeepSpeed forks
    "model_parallel_size": "tensor_parallel",
    "moe_expert_parallel_size": "expert_parallel",
}
_EXTRA = frozenset(
    {
        "ckpt_format", "ckpt_fully_parallel_save", "distributed_timeout_minutes",
        "eval_iters", "exit_duration_in_mins", "exit_signal_handler", "finetune",
        "hidden_size", "hysteresis", "initial_loss_scale", "loss_scale", "loss_scale_window",
        "min_loss_scale", "num_attention_heads", "num_experts", "num_layers", "optimizer",
        "rampup_batch_size", "seq_length", "sequence_parallel", "train_samples",
        "virtual_pipeline_model_parallel_size", "non_persistent_save_interval",
        "check_for_nan_in_loss_and_grad", "rerun_mode", "num_layers_per_virtual_pipeline_stage",
        "log_throughput", "ckpt_step", "no_load_optim", "pretrained_checkpoint",
        "data_path", "train_data_path", "valid_data_path", "test_data_path",
    }
)  # fmt: skip
_TEXTS = frozenset({"save", "load"})


class _ArgumentBlock(Block):
    tolerates = 20  # warnings of other ranks land between the lines
    survives = True

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._values: dict[str, str] = {}

    def feed(self, line: Line) -> bool:
        if _CLOSE.search(line.text):
            self.done = True
            return True
        found = _ENTRY.fullmatch(line.body)
        if found and len(self._values) < _MAX_ENTRIES:
            self._values[found[1]] = found[2].strip()
        return found is not None

    def finish(self) -> Iterable[Event]:
        context = self._context
        fields = {
            ours: _typed(ours, self._values[name])
            for name, ours in _NAMES.items()
            if name in self._values and ours in Arguments._fields
        }
        extra = {
            name: _flag_or_scalar(text) for name, text in self._values.items() if name in _EXTRA
        }
        event = Arguments(
            **{name: fields.get(name) for name in Arguments._fields[:18]}
            | {  # type: ignore[arg-type]
                "precision": _precision(self._values),
                "version": context.version,
            },
            extra=extra,
            timestamp=stamp(self._line.text),
            rank=self._line.rank,
            file=context.file,
            line=self._line.number,
        )
        context.async_save = event.async_save
        context.coverage.process_started(event.log_interval)
        if self._values.get("load") == "None" == self._values.get("pretrained_checkpoint", "None"):
            context.coverage.resumes_from(0)
        yield event


def _typed(name: str, text: str) -> Scalar | bool:
    if text == "None":
        return None
    if name == "async_save":
        return text == "True"
    return text[:MAX_TEXT] if name in _TEXTS else _count(text)


def _flag_or_scalar(text: str) -> Scalar:
    return text == "True" if text in {"True", "False"} else scalar(text)


def _count(text: str) -> int | None:
    value = scalar(text)
    return value if isinstance(value, int) else None


def _precision(values: dict[str, str]) -> str | None:
    if values.get("bf16") == "True":
        return "bf16"
    if values.get("fp16") == "True":
        return "fp16"
    return "fp32" if "params_dtype" in values else None


def _read(line: Line, context: Context) -> Iterable[Event]:
    if _OPEN.search(line.text):
        context.opened = _ArgumentBlock(line, context)
    return ()


def _read_version(line: Line, context: Context) -> Iterable[Event]:
    if found := _VERSION.search(line.text):
        context.version = found[1]
    return ()


RECOGNISER = Recogniser((r"- arguments -",), _read)
VERSION = Recogniser((r"> Megatron-Core version ",), _read_version)
