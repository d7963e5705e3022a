# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Validation results: `validation loss at iteration N | lm loss value: … | lm loss PPL: … |`.

No filter hides a NaN here, unlike in the iteration line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Event, Validation
from mwatch.parse.context import Context, Recogniser
from mwatch.parse.line import Line, stamp
from mwatch.parse.numbers import number

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


def _read(line: Line, context: Context) -> Iterable[Event]:
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
    """`lm loss value: 2.7 | lm loss PPL: 14.3 |`; one fork forgets the bar between the two."""
    before = 0
    for found in _VALUE.finditer(text):
        name = text[before : found.start()].rpartition("|")[2].strip()
        before = found.end()
        value = number(found["number"])
        if name and value is not None:
            loss, ppl, _ = name[-_MAX_NAME:].partition("_ppl")  # gpt-neox: `lm_loss_ppl value:`
            yield loss, "PPL" if ppl else found["kind"], value


def _dataset(name: str, draw: str | None) -> str:
    """`validation`, `test`, or the set's own name (`validation-web` is `web`)."""
    if draw and (found := _SET.search(draw.strip())):
        return found[1]
    words = name[-_MAX_NAME:].split()
    last = words[-1] if words else "validation"
    return last.removeprefix("validation-").removeprefix("validation_") or "validation"


_TRIGGERS = (r"loss at iteration ", r"loss at the end of training", r"results at iteration ")
RECOGNISER = Recogniser(_TRIGGERS, _read, inert=frozenset(_TRIGGERS))
