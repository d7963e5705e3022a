# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Composer's console blocks (LLM-Foundry): a header, then indented `Train key: value` lines.

Values are the latest, not means, so a block covers one batch. `time/batch` inside is logged at
the start of the batch and lags the header by one; the header is what counts. Floats have four
digits: a learning rate of 1e-5 prints 0.0000 and stays 0.0 here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Batch, Event, Flavour, Scalar, Validation
from mwatch.parse.context import Block, Context, Recogniser
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import number, scalar

_HEADER = re.compile(
    r"\[(?:epoch=(?P<epoch>\d{1,9})(?:/\d{1,9})?\]\[)?(?P<unit>batch|token|sample)="
    r"(?P<now>\d{1,18})/(?P<total>\d{1,18})\]:?\s*$"
)
_EVAL = re.compile(r"\[Eval batch=(\d{1,18})/(\d{1,18})\](?: Eval on (.{1,200}?) data)?(:?)\s*$")
_ENTRY = re.compile(r"\s+(Train|Eval) (\S[^:]{0,200}): (.*)")
_MAX_ENTRIES = 512
_TFLOPS = "throughput/device/flops_per_sec"


class _Entries(Block):
    """The indented lines under one header."""

    tolerates = 2

    def __init__(self, line: Line, context: Context, header: re.Match[str]) -> None:
        self.line = line
        self.context = context
        self.header = header
        self.values: dict[str, Scalar] = {}

    def feed(self, line: Line) -> bool:
        found = _ENTRY.fullmatch(line.body)
        if not found or len(self.values) >= _MAX_ENTRIES:
            return False
        self.values[found[2]] = scalar(found[3])
        return True

    @property
    def flavour(self) -> Flavour:
        return self.context.forced or "composer"


class _Train(_Entries):
    def finish(self) -> Iterable[Event]:
        values = self.values
        losses = {
            name: _real(values.pop(name)) for name in list(values) if name.startswith("loss/")
        }
        rate = next((values[name] for name in values if name.startswith("lr-")), None)
        flops = values.get(_TFLOPS)
        in_batches = self.header["unit"] == "batch" and self.header["epoch"] is None
        step = _whole(values.get("time/batch"), 1)
        iteration = int(self.header["now"]) if in_batches or step is None else step
        if self.header["unit"] != "batch":
            values[f"time/{self.header['unit']} total"] = int(self.header["total"])
        yield Batch(
            iteration=iteration,
            total_iterations=int(self.header["total"]) if in_batches else None,
            timestamp=stamp(self.line.text),
            consumed_samples=_whole(values.get("time/sample"), 0),
            elapsed_ms=None,
            learning_rate=rate if isinstance(rate, int | float) else None,
            global_batch_size=None,
            losses={name: loss for name, loss in losses.items() if loss is not None},
            loss_scale=None,
            grad_norm=_real(values.get("l2_norm/grad/global")),
            num_zeros=None,
            params_norm=None,
            throughput_tflops=flops / 1e12 if isinstance(flops, int | float) else None,
            skipped=None,
            nan=None,
            covers=1,
            first_of_process=self.context.coverage.step(iteration).first_of_process,
            extra=values,
            rank=self.line.rank,
            file=self.context.file,
            line=self.line.number,
            flavour=self.flavour,
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
            flavour=self.flavour,
        )


def _real(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) else number(value or "")


def _whole(value: Scalar, plus: int) -> int | None:
    return value + plus if isinstance(value, int) else None


def _read(line: Line, context: Context) -> Iterable[Event]:
    if header := _HEADER.search(line.text):
        context.opened = _Train(line, context, header)
    elif (header := _EVAL.search(line.text)) and header[4]:
        context.opened = _Eval(line, context, header)
    return ()


RECOGNISER = Recogniser((r"(?:batch|token|sample)=\d+/\d",), _read, frozenset({"composer"}))
