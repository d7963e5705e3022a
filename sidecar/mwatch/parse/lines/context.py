# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the recognisers of one file share: flavour, coverage, and the blocks left open.

A recogniser reads one line. What spans several lines (a traceback, the argument block) is a
`Block`, opened by its first line and fed with the following lines of the same lane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mwatch.model.event import Error, Event, Flavour, Iteration
from mwatch.parse.lines.coverage import Coverage
from mwatch.parse.lines.line import Line, stamp

MAX_TEXT = 2000
"""Bound of every text that an event carries."""


class Block(ABC):
    """Something that spans several lines."""

    tolerates = 0
    """How many foreign lines in a row may stand inside before the block is given up."""
    patience = 500
    """For how many lines of the file the block may wait for its next line."""
    survives = False
    """Another block may begin inside it: one process writes two streams into one lane."""
    any_lane = False
    """Its next line may come without the prefix that the first one had."""
    done = False
    """The last line that was fed was the block's last."""

    @abstractmethod
    def feed(self, line: Line) -> bool:
        """Whether the line belongs to the block; a foreign line is read by the others."""

    @abstractmethod
    def finish(self) -> Iterable[Event]: ...


class Context:
    def __init__(self, file: str, flavour: Flavour | None) -> None:
        self.file = file
        self.forced = flavour
        self.hint: Flavour | None = None
        self.coverage = Coverage()
        self.version: str | None = None
        self.async_save: bool | None = None
        self.scheduled: set[int] = set()
        """Iterations whose asynchronous save was queued and is not yet confirmed."""
        self.exit_code: int | None = None
        """Of the last worker that torchrun reported as failed."""
        self.opened: Block | None = None
        """Set by a recogniser; the reader moves it into the line's lane."""

    @property
    def flavour(self) -> Flavour | None:
        return self.forced or self.hint

    def step(
        self, line: Line, iteration: int, total: int | None, flavour: Flavour, **values: Any
    ) -> Iteration:
        """An iteration event of a flavour that is not read from `key: value |` segments."""
        covers = values.pop("covers", None)
        cover = self.coverage.step(iteration)
        blank = Iteration(
            iteration, total, None, None, None, None, None, {}, None, None, None, None, None,
            None, None, cover.covers, cover.first_of_process, {}, line.rank, self.file,
            line.number, self.forced or flavour,
        )  # fmt: skip
        event = blank._replace(**values)
        return event if covers is None else event._replace(covers=covers)

    def error(self, line: Line, **values: Any) -> Error:
        blank = Error(
            kind="launcher",
            error=None,
            message="",
            where=None,
            exit_code=None,
            signal=None,
            restart_count=None,
            host=None,
            pid=None,
            during=None,
            timestamp=stamp(line.text),
            rank=line.rank,
            file=self.file,
            line=line.number,
        )
        return blank._replace(**values)


class Recogniser(NamedTuple):
    """`triggers`: patterns of which a line must match one to be shown to `read`.

    They run over whole blocks at memory speed, so each needs a literal and no open end.
    `flavours`: the flavours whose step lines this reads; empty for lines common to all.
    `inert`: the triggers whose lines change nothing in the context that a step line is read by.
    """

    triggers: tuple[str, ...]
    read: Callable[[Line, Context], Iterable[Event]]
    flavours: frozenset[str] = frozenset()
    inert: frozenset[str] = frozenset()
