# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step lines of NeMo: the 0-based progress printer of NeMo 2 and the tqdm bar of NeMo 1.

Both count from zero and NeMo 2 starts again each epoch; `iteration` is the number of steps
done, as Megatron prints it, and the printed numbers stay in `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Event
from mwatch.parse.context import Context, Recogniser
from mwatch.parse.fields import Fields, read_segments
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import number, seconds_to_ms, whole

_PRINTER = re.compile(r"Training epoch (\d{1,9}), iteration (\d{1,18})/(\d{1,18}) \|([^\n]*)")
_BAR = re.compile(r"Epoch (\d{1,9}): [^\n]{0,200}?(\d{1,18})/(\d{1,18}) \[([^\]\n]{0,2000})\]?")
_RATE = re.compile(r"(\d{1,12}(?:\.\d{0,12})?)(s/it|it/s)")


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
        for part in found[4].split(","):
            key, equals, value = part.strip().partition("=")
            if equals:
                fields.add(key, value)
        if not fields.losses:
            continue
        rate = _RATE.search(found[4])
        if rate and float(rate[1]):
            seconds = float(rate[1]) if rate[2] == "s/it" else 1 / float(rate[1])
            fields.known["elapsed_ms"] = seconds_to_ms(seconds)
        fields.extra["epoch"] = int(found[1])
        global_step = whole(number(str(fields.extra.get("global_step", ""))))
        total = int(found[3]) if found[1] == "0" else None
        step = int(found[2]) if found[1] == "0" or global_step is None else global_step + 1
        yield _event(line, context, fields, step, total)


PRINTER = Recogniser((r"Training epoch ",), _read_printer, frozenset({"bridge"}))
BAR = Recogniser((r"reduced_train_loss=",), _read_bar, frozenset({"bridge"}))
