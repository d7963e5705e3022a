# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The file of weights for several datasets, as Megatron's `--data-args-path` reads it.

A weight is what a person gave, else the dataset's share of all tokens: then each text is seen
equally often. Every dataset is checked before it is named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mwatch_gpt import index_file
from mwatch_gpt.bad_input import BadInput


class Share(NamedTuple):
    prefix: str
    weight: float
    tokens: int


def shares(names: Sequence[str]) -> list[Share]:
    """`PREFIX` or `PREFIX=WEIGHT`, the one or the other for all."""
    found = [_named(name) for name in names]
    given = [weight for _, weight in found if weight is not None]
    if given and len(given) != len(found):
        raise BadInput("give a weight to every dataset, or to none")
    tokens = [_tokens(prefix) for prefix, _ in found]
    total = sum(tokens) or 1
    return [
        Share(prefix, count / total if weight is None else weight, count)
        for (prefix, weight), count in zip(found, tokens, strict=True)
    ]


def write(path: Path, blended: Sequence[Share]) -> None:
    """In one step."""
    text = "".join(f"{each.weight:.9g} {each.prefix}\n" for each in blended)
    part = path.with_name(path.name + ".part")
    part.write_text(text, "utf-8")
    os.replace(part, path)


def _named(name: str) -> tuple[str, float | None]:
    prefix, is_weighted, text = name.rpartition("=")
    if not is_weighted:
        return _usable(name), None
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise BadInput(f"{name}: {text!r} is no weight")
    return _usable(prefix), weight


def _usable(prefix: str) -> str:
    if any(char.isspace() for char in prefix):
        raise BadInput(f"{prefix!r}: Megatron cuts this file at every space")
    for ending in (".bin", ".idx"):
        prefix = prefix.removesuffix(ending)
    return prefix


def _tokens(prefix: str) -> int:
    checked = index_file.check(prefix)
    if checked.problems:
        raise BadInput(checked.problems[0])
    return checked.tokens
