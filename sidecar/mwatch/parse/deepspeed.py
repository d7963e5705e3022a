# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own lines: the engine's step line and the loss scaler's overflow messages.

Megatron-DeepSpeed prints its counters as 0 whatever happens, so these overflow lines are the
only sign of a skipped step there. `skipped=` of the engine is cumulative and stays in `extra`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Event, Overflow
from mwatch.parse.context import Context, Recogniser
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import number, scalar, seconds_to_ms

_NUMBER = r"([-+]?[\w.+-]+)"
_STEP = re.compile(
    rf"steps: (\d{{1,18}}) loss: {_NUMBER} iter time \(s\): {_NUMBER}(?: samples/sec: {_NUMBER})?"
)
_SCALE = re.compile(
    r"[Aa]ttempted loss scale: ([\d.e+]+)(?:, (?:reducing to ([\d.e+]+)"
    r"|but hysteresis is (\d{1,9})\. Reducing hysteresis to (\d{1,9})))?"
)


def _read_step(line: Line, context: Context) -> Iterable[Event]:
    for found in _STEP.finditer(line.text):
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
    found = _SCALE.search(line.text)
    before = number(found[1]) if found else None
    after = number(found[2]) if found and found[2] else None
    hysteresis = int(found[4]) if found and found[4] else None
    if hysteresis is not None:
        after = before
    yield Overflow(
        before, after, hysteresis, stamp(line.text), line.rank, context.file, line.number
    )


STEP = Recogniser((r"iter time \(s\): ",), _read_step, frozenset({"deepspeed"}))
OVERFLOW = Recogniser((r"OVERFLOW! ", r"Overflow detected\. Skipping"), _read_overflow)
