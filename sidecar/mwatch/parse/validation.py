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
    r"(?P<set>[\w./-]+(?: [\w./-]+)?) loss at (?:iteration +(?P<iteration>\d{1,18})"
    r"|the end of training)(?: on (?P<draw>[^|\n]{1,120}))?\s*\|"
)
_VALUE = re.compile(
    r"([A-Za-z][\w .\-/]{0,60}?) (value|PPL) *[:=] *([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\w+))"
)
_SET = re.compile(r"(validation|test|train|valid)(?: set)?$")


def _read(line: Line, context: Context) -> Iterable[Event]:
    heads = list(_HEAD.finditer(line.text))
    for index, head in enumerate(heads):
        end = heads[index + 1].start() if index + 1 < len(heads) else len(line.text)
        losses: dict[str, float] = {}
        perplexities: dict[str, float] = {}
        for name, kind, text in _VALUE.findall(line.text[head.end() - 1 : end]):
            value = number(text)
            if value is not None:
                (losses if kind == "value" else perplexities)[name] = value
        yield Validation(
            iteration=int(head["iteration"]) if head["iteration"] else None,
            dataset=_dataset(head["set"], head["draw"]),
            losses=losses,
            perplexities=perplexities,
            timestamp=stamp(line.text),
            rank=line.rank,
            file=context.file,
            line=line.number,
            flavour=context.flavour or "megatron",
        )


def _dataset(name: str, draw: str | None) -> str:
    """`validation`, `test`, or the set's own name (`validation-web` is `web`)."""
    if draw and (found := _SET.search(draw.strip())):
        return found[1]
    last = name.split()[-1]
    return last.removeprefix("validation-").removeprefix("validation_") or "validation"


RECOGNISER = Recogniser((r"loss at iteration ", r"loss at the end of training"), _read)
