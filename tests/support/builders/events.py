# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Readable inputs for the tests: log lines by their parts, and the events that they give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TypeVar

from mwatch.config import catalogue
from mwatch.model.event import Event, Flavour, Iteration
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader

T = TypeVar("T")
STAMP = "2025-09-07 23:58:47"
MICRO_STAMP = "2026-01-07 23:58:47.123456"


@cache
def grammar(flavour: Flavour | None = None, *, faults: bool = False) -> Grammar:
    """Grammars cost a compilation, so each is made once for all tests."""
    return Grammar(catalogue.load() if faults else (), flavour)


def events(
    text: str | bytes,
    *,
    flavour: Flavour | None = None,
    faults: bool = False,
    chunk: int | None = None,
    file: str = "trainer.log",
) -> list[Event]:
    """The events of a whole log; `chunk`: fed in pieces of this many bytes."""
    data = text.encode() if isinstance(text, str) else text
    reader = Reader(grammar(flavour, faults=faults), file)
    found: list[Event] = []
    for start in range(0, len(data), chunk or max(1, len(data))):
        found += reader.feed(data[start : start + (chunk or len(data))])
    return found + reader.close()


def only(found: Iterable[object], kind: type[T]) -> list[T]:
    return [event for event in found if type(event) is kind]


def many(text: str | bytes, kind: type[T], *, flavour: Flavour | None = None) -> list[T]:
    """The events of one kind."""
    return only(events(text, flavour=flavour), kind)


def one(text: str | bytes, kind: type[T], *, flavour: Flavour | None = None) -> T:
    """The only event of this kind; other kinds may stand beside it."""
    found = many(text, kind, flavour=flavour)
    assert len(found) == 1, f"expected one {kind.__name__}, got {found}"
    return found[0]


def none(text: str | bytes, kind: type[T]) -> None:
    found = many(text, kind)
    assert not found, f"expected no {kind.__name__}, got {found}"


def steps(text: str | bytes) -> list[Iteration]:
    return many(text, Iteration)


def megatron_line(
    iteration: int = 610,
    total: int = 500_000,
    *,
    stamp: str | None = STAMP,
    change: Mapping[str, str | None] | None = None,
    before_rate: str = "",
    losses: str = " lm loss: 6.002230E+00 |",
    tail: str = "",
) -> str:
    """An upstream iteration line without its newline.

    `change` replaces the printed value of a key, or takes the key away (None); `before_rate`,
    `losses` and `tail` are segments as printed, each with its closing bar.
    """
    values: dict[str, str | None] = {
        "consumed samples": f"{iteration * 32:12d}",
        "elapsed time per iteration (ms)": "436.7",
        "learning rate": "5.999998E-05",
        "global batch size": f"{32:5d}",
        "loss scale": "131072.0",
        "grad norm": "0.791",
        "number of skipped iterations": "  0",
        "number of nan iterations": "  0",
    }
    values |= change or {}
    line = f" [{stamp}]" if stamp else ""
    line += f" iteration {iteration:8d}/{total:8d} |"
    for key, value in values.items():
        line += before_rate if key == "learning rate" else ""
        line += losses if key == "loss scale" else ""
        line += f" {key}: {value} |" if value is not None else ""
    return line + tail


def log(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def arguments_block(**values: object) -> str:
    """The argument block with the given entries, and no final newline."""
    rows = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    head = "------------------------ arguments ------------------------"
    foot = "-------------------- end of arguments ---------------------"
    return "\n".join((head, *rows, foot))


def started(log_interval: int, *, load: str | None = None) -> str:
    """What rank 0 prints when a process starts, up to its first step."""
    return log(
        "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1",
        arguments_block(load=load, log_interval=log_interval, world_size=8),
        "> initializing torch distributed ...",
        "[after megatron is initialized] datetime: 2025-09-07 23:50:00 ",
        *(() if load is None else (loaded(load),)),
        "done with setup ...",
        "training ...",
        "[before the start of training step] datetime: 2025-09-07 23:51:00 ",
    )


def loaded(place: str) -> str:
    """`DIR@N`: the line that says that iteration N was loaded from DIR."""
    path, _, iteration = place.partition("@")
    return f"  successfully loaded checkpoint from {path} [ t 1/1, p 1/1 ] at iteration {iteration}"
