# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step lines of NeMo, torchtitan, DeepSpeed, Composer (LLM-Foundry) and OLMo.

NeMo counts from zero, and NeMo 2 restarts the count with each epoch; `iteration` is the number of
finished steps. torchtitan's `[rank0]:` is the local rank from torchrun's tee and is dropped; a loss
of -1 is a placeholder. Megatron-DeepSpeed prints its counters as 0, so its overflow lines are the
only sign of skipped steps. Composer prints the latest values, not means, so a block covers one
batch. Its `time/batch` lags the header by one, and a learning rate of 1e-5 prints as 0.0000.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

from mwatch.model.event import Batch, Checkpoint, Event, Overflow, Scalar, Validation
from mwatch.parse.lines.context import MAX_TEXT, Block, Context, Recogniser
from mwatch.parse.lines.fields import Fields, number, read_segments, scalar, seconds_to_ms, whole
from mwatch.parse.lines.line import Line, stamp

_PRINTER = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,18})/(\d{1,18}) \|([^\n]*)")
_BAR = re.compile(
    r"Epoch (\d{1,9}): [^\n]{0,200}?(\d{1,18})/(\d{1,18}) "
    r"\[([^\]\n]{0,2000}(?:\] (?=[A-Za-z_]\w{0,60}=)[^\n]{0,2000})?)\]?"
)
"""The fields are inside the brackets or after them."""
_RATE = re.compile(r"(\d{1,12}(?:\.\d{0,12})?)(s/it|it/s)")
_TORCHTITAN_STEP = re.compile(r"step: *(\d{1,18}) +(loss: [^\n]*)")
_TORCHTITAN_CHECKPOINT = re.compile(
    r"(?P<done>Finished )?\b(?P<doing>[Ll]oading|[Ss]aving) (?:the|a \w{1,12}) checkpoint\b"
    r"(?: at (?:last )?step(?:, step)?[ ,]+(?P<step>\d{1,18})"
    r"| from \S{0,300}?step-(?P<from>\d{1,18}))?"
)
"""A line with `or staging` is printed even if only a copy in memory was made so far."""
_FIELD = re.compile(r"([A-Za-z_][\w./ ]{0,60}?): *([^\s:]+)(?=\s|$)")
_NUMBER = r"([-+]?[\w.+-]+)"
_DEEPSPEED_STEP = re.compile(
    rf"steps: (\d{{1,18}}) loss: {_NUMBER} iter time \(s\): {_NUMBER}(?: samples/sec: {_NUMBER})?"
)
_SCALE = re.compile(
    r"[Aa]ttempted loss scale: ([\d.e+-]+)(?:, (?:reducing to ([\d.e+-]+)"
    r"|but hysteresis is (\d{1,9})\. Reducing hysteresis to (\d{1,9})))?"
)
_APEX = re.compile(
    r"(?:Gradient overflow\. .{0,80}reducing|overflow detected, .{0,40}setting) loss scale to:? "
    r"([\d.e+-]+)"
)
"""Overflow lines of Apex and fairseq, which print only the new scale."""
_HEADER = re.compile(
    r"\[(?:epoch=(?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[)?(?P<unit>batch|token|sample)="
    r"(?P<now>\d{1,18})/(?P<total>\d{1,18})\]:?\s*$"
)
_OLMO_HEADER = re.compile(
    r"\[step=(?P<now>\d{1,18})/(?P<total>\d{1,18})(?:,epoch=\d{1,9}(?:/\d{1,9})?)?\]\s*$"
)
_EVAL = re.compile(r"\[Eval batch=(\d{1,18})/(\d{1,18})\](?: Eval on (.{1,200}?) data)?(:?)\s*$")
_ENTRY = re.compile(r"\s+(?:Train|Eval) (\S[^:]{0,200}): (.*)")
_OLMO_ENTRY = re.compile(r"\s+(\w[\w/ .()-]{0,200})=(\S.*)")
_OLMO_LOSS = re.compile(r"train/\w{0,40}[Ll]oss")
_MAX_ENTRIES = 512
_TRUE_LOSS = "reduced_train_loss"
_TFLOPS = "throughput/device/flops_per_sec"


def _event(line: Line, context: Context, fields: Fields, step: int, total: int | None) -> Event:
    return context.step(
        line,
        step,
        total,
        "bridge",
        timestamp=stamp(line.text),
        consumed_samples=fields.count("consumed_samples"),
        elapsed_ms=fields.known.get("elapsed_ms"),
        learning_rate=fields.known.get("learning_rate"),
        global_batch_size=fields.count("global_batch_size"),
        losses=fields.losses,
        grad_norm=fields.known.get("grad_norm"),
        throughput_tflops=fields.known.get("throughput_tflops"),
        extra=fields.extra,
    )


def _read_printer(line: Line, context: Context) -> Iterable[Event]:
    for found in _PRINTER.finditer(line.text):
        epoch, printed, last = int(found[1]), int(found[2]), int(found[3])
        fields = read_segments(found[4].split("|"))
        done = fields.extra.get("global_step")
        step = (done if isinstance(done, int) else printed) + 1
        fields.extra = {"epoch": epoch, **fields.extra}
        total = last + 1 if step == printed + 1 else None
        yield _event(line, context, fields, step, total)


def _read_bar(line: Line, context: Context) -> Iterable[Event]:
    for found in _BAR.finditer(line.text):
        fields = Fields()
        for part in re.split(r"[,\]]", found[4]):
            key, equals, value = part.strip().partition("=")
            if equals:
                fields.add(key, value)
        if not fields.losses:
            continue
        if not math.isfinite(fields.losses.get("loss", 0.0)) and _TRUE_LOSS in fields.losses:
            del fields.losses["loss"]  # of this pipeline stage alone, which computes no loss
        rate = _RATE.search(found[4])
        if rate and float(rate[1]):
            seconds = float(rate[1]) if rate[2] == "s/it" else 1 / float(rate[1])
            fields.known["elapsed_ms"] = seconds_to_ms(seconds)
        fields.extra["epoch"] = int(found[1])
        global_step = whole(number(str(fields.extra.get("global_step", ""))))
        total = int(found[3]) if found[1] == "0" else None
        step = int(found[2]) if found[1] == "0" or global_step is None else global_step + 1
        yield _event(line, context, fields, step, total)


NEMO_PRINTER = Recogniser((r"Training epoch ",), _read_printer, frozenset({"bridge"}))
NEMO_BAR = Recogniser((r"reduced_train_loss=",), _read_bar, frozenset({"bridge"}))


def _read_torchtitan(line: Line, context: Context) -> Iterable[Event]:
    found = _TORCHTITAN_STEP.search(line.text)
    if not found:
        return
    fields = Fields()
    for key, value in _FIELD.findall(found[2]):
        if key == "loss" and number(value) == -1.0:
            fields.extra["loss"] = -1.0  # not the last pipeline stage, so there is no loss
        else:
            fields.add(key, value)
    yield context.step(
        line._replace(rank=None),
        int(found[1]),
        None,
        "torchtitan",
        timestamp=stamp(line.text),
        losses=fields.losses,
        learning_rate=fields.known.get("learning_rate"),
        grad_norm=fields.known.get("grad_norm"),
        throughput_tflops=fields.known.get("throughput_tflops"),
        extra=fields.extra,
    )


TORCHTITAN = Recogniser((r"step: *\d+ +loss:",), _read_torchtitan, frozenset({"torchtitan"}))


def _read_torchtitan_checkpoint(line: Line, context: Context) -> Iterable[Event]:
    found = _TORCHTITAN_CHECKPOINT.search(line.text)
    if not found:
        return
    op: Literal["save", "load"] = "load" if found["doing"].lower() == "loading" else "save"
    step = whole(number(found["step"] or found["from"] or ""))
    is_end = found["done"] is not None
    if op == "save" and step is None and is_end and "staging" not in line.text:
        step = context.coverage.steady
    yield Checkpoint(
        op, "end" if is_end else "begin", step, None, None, line.body.strip()[:MAX_TEXT],
        stamp(line.text), None, context.file, line.number,
    )  # fmt: skip


TORCHTITAN_CHECKPOINTS = Recogniser(
    (
        r"(?:Loading|Saving) (?:the|a \w+) checkpoint\b",
        r"Finished (?:sav|load)ing the checkpoint\b",
    ),
    _read_torchtitan_checkpoint,
)


def _read_step(line: Line, context: Context) -> Iterable[Event]:
    if context.prints_iterations:
        return  # Megatron's line reports the same steps
    for found in _DEEPSPEED_STEP.finditer(line.text):
        loss, seconds = number(found[2]), number(found[3])
        yield context.step(
            line,
            int(found[1]),
            None,
            "deepspeed",
            timestamp=stamp(line.text),
            elapsed_ms=None if seconds is None else seconds_to_ms(seconds),
            losses={} if loss is None else {"loss": loss},
            extra={"samples/sec": scalar(found[4])} if found[4] else {},
        )


def _read_overflow(line: Line, context: Context) -> Iterable[Event]:
    context.hint = context.hint or "deepspeed"
    if apex := _APEX.search(line.text):
        after = number(apex[1])
        before = None if after is None else 2 * after
        yield Overflow(before, after, None, stamp(line.text), line.rank, context.file, line.number)
        return
    found = _SCALE.search(line.text)
    before = number(found[1]) if found else None
    after = number(found[2]) if found and found[2] else None
    hysteresis = int(found[4]) if found and found[4] else None
    if hysteresis is not None:
        after = before
    yield Overflow(
        before, after, hysteresis, stamp(line.text), line.rank, context.file, line.number
    )


DEEPSPEED_STEP = Recogniser((r"iter time \(s\): ",), _read_step, frozenset({"deepspeed"}))
DEEPSPEED_OVERFLOW = Recogniser(
    (
        r"OVERFLOW! ",
        r"Overflow detected\. Skipping",
        r"Gradient overflow\. ",
        r"overflow detected, [^\n]{0,40}setting loss scale to: ",
    ),
    _read_overflow,
)


class _Entries(Block):
    tolerates = 2
    entry = _ENTRY

    def __init__(self, line: Line, context: Context, header: re.Match[str]) -> None:
        self.line = line
        self.context = context
        self.header = header
        self.values: dict[str, Scalar] = {}

    def feed(self, line: Line) -> bool:
        found = self.entry.fullmatch(line.body)
        if not found or len(self.values) >= _MAX_ENTRIES:
            return False
        self.values[found[1]] = scalar(found[2])
        return True


class _Train(_Entries):
    def finish(self) -> Iterable[Event]:
        values = self.values
        losses = {
            name: _real(values.pop(name)) for name in list(values) if name.startswith("loss/")
        }
        rate = next((values[name] for name in values if name.startswith("lr-")), None)
        flops = values.get(_TFLOPS)
        in_batches = self.header["unit"] == "batch" and self.header["epoch"] is None
        batch = _whole(values.get("time/batch"), 1)
        iteration = int(self.header["now"]) if in_batches or batch is None else batch
        if self.header["unit"] != "batch":
            values[f"time/{self.header['unit']} total"] = int(self.header["total"])
        step = self.context.step(
            self.line,
            iteration,
            int(self.header["total"]) if in_batches else None,
            "composer",
            timestamp=stamp(self.line.text),
            consumed_samples=_whole(values.get("time/sample"), 0),
            learning_rate=rate if isinstance(rate, int | float) else None,
            losses={name: loss for name, loss in losses.items() if loss is not None},
            grad_norm=_real(values.get("l2_norm/grad/global")),
            throughput_tflops=flops / 1e12 if isinstance(flops, int | float) else None,
            covers=1,
            extra=values,
        )
        yield Batch(*step)


class _Olmo(_Entries):
    entry = _OLMO_ENTRY

    def finish(self) -> Iterable[Event]:
        known = {name: _real(value) for name, value in self.values.items()}
        yield self.context.step(
            self.line,
            int(self.header["now"]),
            int(self.header["total"]),
            "other",
            timestamp=stamp(self.line.text),
            learning_rate=known.get("optim/learning_rate_group0"),
            losses={
                name: loss
                for name, loss in known.items()
                if loss is not None and _OLMO_LOSS.fullmatch(name)
            },
            grad_norm=known.get("optim/total_grad_norm"),
            extra=self.values,
        )


class _Eval(_Entries):
    def finish(self) -> Iterable[Event]:
        losses = {name: _real(value) for name, value in self.values.items()}
        known = {name: value for name, value in losses.items() if value is not None}
        if not known:
            return
        yield Validation(
            iteration=None,
            dataset=self.header[3],
            losses=known,
            perplexities={},
            timestamp=stamp(self.line.text),
            rank=self.line.rank,
            file=self.context.file,
            line=self.line.number,
            flavour=self.context.forced or "composer",
        )


def _real(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) else number(value or "")


def _whole(value: Scalar, plus: int) -> int | None:
    return value + plus if isinstance(value, int) else None


def _read_composer(line: Line, context: Context) -> Iterable[Event]:
    if header := _HEADER.search(line.text):
        context.opened = _Train(line, context, header)
    elif (header := _EVAL.search(line.text)) and header[4]:
        context.opened = _Eval(line, context, header)
    return ()


def _read_olmo(line: Line, context: Context) -> Iterable[Event]:
    if header := _OLMO_HEADER.search(line.text):
        context.opened = _Olmo(line, context, header)
    return ()


COMPOSER = Recogniser((r"(?:batch|token|sample)=\d+/\d",), _read_composer, frozenset({"composer"}))
OLMO = Recogniser((r"\[step=\d+/\d",), _read_olmo, frozenset({"other"}))
