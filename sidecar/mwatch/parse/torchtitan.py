# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's step line. Several ranks print the same step; a loss of -1 is a placeholder.

`[rank0]:` in front of it comes from torchrun's tee and is the *local* rank, so it is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Event
from mwatch.parse.context import Context, Recogniser
from mwatch.parse.fields import Fields
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import number

_STEP = re.compile(r"step: *(\d{1,18}) +(loss: [^\n]*)")
_FIELD = re.compile(r"([A-Za-z_][\w./ ]{0,60}?): *([^\s:]+)(?=\s|$)")


def _read(line: Line, context: Context) -> Iterable[Event]:
    found = _STEP.search(line.text)
    if not found:
        return
    fields = Fields()
    for key, value in _FIELD.findall(found[2]):
        if key == "loss" and number(value) == -1.0:
            fields.extra["loss"] = -1.0  # not the last pipeline stage: it has no loss
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


RECOGNISER = Recogniser((r"step: *\d+ +loss:",), _read, frozenset({"torchtitan"}))
