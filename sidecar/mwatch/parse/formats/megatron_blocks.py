# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's reports: the argument block, timers, the straggler report, validation results.

Only listed arguments out of hundreds are kept, because others may hold secrets or user paths. Since
core_v0.16 the first line of a timer report goes through `logging` and has a prefix. Megatron
divides step timers by the log interval even if fewer steps were done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Arguments, Event, Scalar, Straggler, Timers, Validation
from mwatch.parse.lines.context import MAX_TEXT, Block, Context, Recogniser
from mwatch.parse.lines.fields import number, scalar
from mwatch.parse.lines.line import Line, stamp

_OPEN_ARGUMENTS = re.compile(r"-{6,} arguments -{6,}")
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
    # names in v2.x and in the DeepSpeed forks
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
_F = r"(-?\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|nan|inf)"
_OPEN_TIMERS = re.compile(r"times? across ranks \(ms\):\s*$")
_MIN_MAX = re.compile(rf"\s+(\S[^:]{{0,99}}?)[ .]*: \({_F}, {_F}\)\s*")
_MAX = re.compile(rf"\s+(\S[^:]{{0,99}}?)[ .]*: {_F}\s*")
_NAME = re.compile(r"\s+(\S[^:]{0,99}?)[ .]*:\s*")
_RANK = re.compile(rf"\s+rank\s+(\d+)\s*: {_F}\s*")
_OLD = re.compile(r"time \(ms\)((?: \| [^|\n]{1,100}: \d{1,40}(?:\.\d{0,40})?)+)")
_OLD_FIELD = re.compile(rf"\| ([^|:]{{1,100}}): {_F}")
_STRAGGLER = re.compile(r"(M[nx]\w{1,8})/Rnk: *([-\d.]+) ?[A-Za-z%/]*?/(\d{1,7})(?= |\||$)")
_MAX_TIMERS = 200
_STEP = " iteration "
_AT_START = "model-and-optimizer-setup"
_HEAD = re.compile(
    r" (?:loss|results) at (?:iteration +(?P<iteration>\d{1,18})|the end of training)"
    r"(?: \[(?P<set>[^\]|\n]{1,60})\])?(?: on (?P<draw>[^|\n]{1,120}))?\s{0,9}\|"
)
_VALUE = re.compile(
    r" (?P<kind>value|PPL) ?[:=] {0,9}"
    r"(?P<number>[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|[A-Za-z]{3,8}))"
)
_MAX_NAME = 60
_SET = re.compile(r"(validation|test|train|valid)(?: set)?$")
_TRIGGERS = (r"loss at iteration ", r"loss at the end of training", r"results at iteration ")


class _ArgumentBlock(Block):
    tolerates = 20  # warnings of other ranks appear between the lines
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
    value = text[:MAX_TEXT] if name in _TEXTS else scalar(text)
    return value if name in _TEXTS or isinstance(value, int) else None


def _flag_or_scalar(text: str) -> Scalar:
    return text == "True" if text in {"True", "False"} else scalar(text)


def _precision(values: dict[str, str]) -> str | None:
    if values.get("bf16") == "True":
        return "bf16"
    if values.get("fp16") == "True":
        return "fp16"
    return "fp32" if "params_dtype" in values else None


def _read_arguments(line: Line, context: Context) -> Iterable[Event]:
    if _OPEN_ARGUMENTS.search(line.text):
        context.opened = _ArgumentBlock(line, context)
    return ()


def _read_version(line: Line, context: Context) -> Iterable[Event]:
    if found := _VERSION.search(line.text):
        context.version = found[1]
    return ()


ARGUMENTS = Recogniser((r"- arguments -",), _read_arguments)
VERSION = Recogniser((r"> Megatron-Core version ",), _read_version)


class _Report(Block):
    tolerates = 50  # only the head goes through `logging`, so other lines may come in between

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._values: dict[str, tuple[float, float]] = {}
        self._name: str | None = None

    def feed(self, line: Line) -> bool:
        if len(self._values) >= _MAX_TIMERS:
            return False
        if found := _MIN_MAX.fullmatch(line.body):
            self._values[found[1]] = (float(found[2]), float(found[3]))
        elif (found := _RANK.fullmatch(line.body)) and self._name:
            value = float(found[2])
            low, high = self._values.get(self._name, (value, value))
            self._values[self._name] = (min(low, value), max(high, value))
        elif found := _MAX.fullmatch(line.body):
            self._values[found[1]] = (float(found[2]), float(found[2]))
        elif found := _NAME.fullmatch(line.body):
            self._name = found[1]
        if found:
            self.tolerates = 1
            if found[1] == _AT_START:
                self._context.coverage.process_started()  # all that the last rank prints at start
        elif self._values and _STEP in line.text:
            self.done = True  # so that the following step lines are read in blocks again
        return found is not None

    def finish(self) -> Iterable[Event]:
        if self._values:
            line = self._line
            yield Timers(self._values, stamp(line.text), line.rank, self._context.file, line.number)


def _read_timers(line: Line, context: Context) -> Iterable[Event]:
    if _OPEN_TIMERS.search(line.text):
        context.opened = _Report(line, context)
        return
    for found in _OLD.finditer(line.text):
        values = {name: (float(ms), float(ms)) for name, ms in _OLD_FIELD.findall(found[1])}
        yield Timers(values, stamp(line.text), line.rank, context.file, line.number)


def _read_straggler(line: Line, context: Context) -> Iterable[Event]:
    measures: dict[str, tuple[float, int]] = {}
    for name, text, rank in _STRAGGLER.findall(line.text):
        value = number(text)
        if value is not None:
            measures[name] = (value, int(rank))
    if measures:
        yield Straggler(measures, stamp(line.text), line.rank, context.file, line.number)


TIMERS = Recogniser((r"across ranks \(ms\):", r"time \(ms\) \|"), _read_timers)
STRAGGLER = Recogniser((r"Rtt/Rnk",), _read_straggler)


def _read_validation(line: Line, context: Context) -> Iterable[Event]:
    heads = list(_HEAD.finditer(line.text))
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(line.text)
        losses: dict[str, float] = {}
        perplexities: dict[str, float] = {}
        for name, kind, value in _values(line.text[head.end() - 1 : end]):
            (losses if kind == "value" else perplexities)[name] = value
        yield Validation(
            iteration=int(head["iteration"]) if head["iteration"] else None,
            dataset=head["set"] or _dataset(line.text[: head.start()], head["draw"]),
            losses=losses,
            perplexities=perplexities,
            timestamp=stamp(line.text),
            rank=line.rank,
            file=context.file,
            line=line.number,
            flavour=context.flavour or "megatron",
        )


def _values(text: str) -> Iterable[tuple[str, str, float]]:
    """Read `lm loss value: 2.7 | lm loss PPL: 14.3 |`; one fork omits the `|` between them."""
    before = 0
    for found in _VALUE.finditer(text):
        name = text[before : found.start()].rpartition("|")[2].strip()
        before = found.end()
        value = number(found["number"])
        if name and value is not None:
            loss, ppl, _ = name[-_MAX_NAME:].partition("_ppl")  # gpt-neox: `lm_loss_ppl value:`
            yield loss, "PPL" if ppl else found["kind"], value


def _dataset(name: str, draw: str | None) -> str:
    """Return `validation`, `test` or the name of the set (`web` for `validation-web`)."""
    if draw and (found := _SET.search(draw.strip())):
        return found[1]
    words = name[-_MAX_NAME:].split()
    last = words[-1] if words else "validation"
    return last.removeprefix("validation-").removeprefix("validation_") or "validation"


VALIDATION = Recogniser(_TRIGGERS, _read_validation, inert=frozenset(_TRIGGERS))
