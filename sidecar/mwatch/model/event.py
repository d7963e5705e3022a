# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events: the facts in a trainer's output, one value per fact.

Events are named tuples, not dataclasses: the reader makes several hundred thousand iteration
events a second, and a tuple costs a fifth of a frozen dataclass. `None` means "not printed".
Numbers may be NaN or infinite; `mwatch.model.snapshot.event_wire` turns those into text for JSON.

A line number counts physical lines of its file from 1. `rank` is the *global* rank if a prefix of
the line has it; torchrun's `[default7]:` is a local rank and is ignored.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any, Literal, NamedTuple, get_args

Flavour = Literal["megatron", "deepspeed", "bridge", "composer", "torchtitan", "other"]
Edge = Literal["begin", "mark", "end", "failed"]
Scalar = float | int | str | None


class Iteration(NamedTuple):
    """One line that reports training steps.

    `covers` is the number of iterations in the averages and counters of the line. A line with
    `first_of_process` covers one iteration, and from core_v0.16 on the next line covers that
    iteration again: summing `skipped` over lines must drop the overlap.
    """

    iteration: int
    total_iterations: int | None
    timestamp: str | None
    consumed_samples: int | None
    elapsed_ms: float | None
    learning_rate: float | None
    global_batch_size: int | None
    losses: Mapping[str, float]
    loss_scale: float | None
    grad_norm: float | None
    num_zeros: float | None
    params_norm: float | None
    throughput_tflops: float | None
    skipped: int | None
    nan: int | None
    covers: int | None
    first_of_process: bool
    extra: Mapping[str, Scalar]
    rank: int | None
    file: str
    line: int
    flavour: Flavour


class Batch(Iteration):
    """A Composer console block, which reports the latest batch in the fields of `Iteration`."""

    __slots__ = ()


class Validation(NamedTuple):
    """An evaluation result. PPL 4.851652E+08 is exp(20): saturated or NaN."""

    iteration: int | None
    dataset: str | None
    losses: Mapping[str, float]
    perplexities: Mapping[str, float]
    timestamp: str | None
    rank: int | None
    file: str
    line: int
    flavour: Flavour


class Phase(NamedTuple):
    """A boundary between phases; `text` is the marker as printed."""

    name: str
    edge: Edge
    text: str
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Checkpoint(NamedTuple):
    """A checkpoint line. For an asynchronous save `mark` means queued, only `end` is durable."""

    op: Literal["save", "load", "delete"]
    edge: Edge
    iteration: int | None
    path: str | None
    is_async: bool | None
    text: str
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Fault(NamedTuple):
    """A line that matches an entry of the fault catalogue; `role` is the role of that entry."""

    id: str
    node: str | None
    gpu: str | None
    text: str
    role: str
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Error(NamedTuple):
    """One traceback, exception, torchelastic block or launcher report.

    `exception` is an exception without the head of its traceback. `rank` is the rank that failed
    first, if the text has it. `where` is the last frame in the user's code, or the last one, and
    `frame` the same as printed.
    `during` is what the trainer was doing, by the functions in a traceback: `load`, `save`,
    `evaluate`, `data`, `build` (a kernel), `meet` (the other ranks), `step` or `close`. `line` is
    the first line of a block; the exception itself and the frame have line numbers of their own.
    """

    kind: Literal["traceback", "exception", "elastic", "restart", "launcher"]
    error: str | None
    message: str
    where: str | None
    frame: str | None
    where_line: int | None
    error_line: int | None
    exit_code: int | None
    signal: str | None
    restart_count: int | None
    host: str | None
    pid: int | None
    during: str | None
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Overflow(NamedTuple):
    """A DeepSpeed loss-scaler message. Equal scales mean that only hysteresis was spent."""

    scale_before: float | None
    scale_after: float | None
    hysteresis: int | None
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Timers(NamedTuple):
    """Megatron's timer report: name → (smallest, largest) milliseconds across ranks."""

    values: Mapping[str, tuple[float, float]]
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Straggler(NamedTuple):
    """`--log-straggler` report: measure → (value, rank)."""

    measures: Mapping[str, tuple[float, int]]
    timestamp: str | None
    rank: int | None
    file: str
    line: int


class Exit(NamedTuple):
    """A line with which the trainer reports that it stops, and why."""

    reason: str
    iteration: int | None
    text: str
    timestamp: str | None
    rank: int | None
    file: str
    line: int


ASKED_EXITS = frozenset({"interval", "duration", "evaluation-time-limit"})
"""Reasons of exits that the user configured."""


class Arguments(NamedTuple):
    """The printed argument block, as far as later stages use it."""

    world_size: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    context_parallel: int | None
    expert_parallel: int | None
    data_parallel: int | None
    log_interval: int | None
    precision: str | None
    save: str | None
    load: str | None
    save_interval: int | None
    eval_interval: int | None
    train_iters: int | None
    exit_interval: int | None
    global_batch_size: int | None
    micro_batch_size: int | None
    async_save: bool | None
    version: str | None
    extra: Mapping[str, Scalar]
    timestamp: str | None
    rank: int | None
    file: str
    line: int


Event = (
    Iteration
    | Batch
    | Validation
    | Phase
    | Checkpoint
    | Fault
    | Error
    | Overflow
    | Timers
    | Straggler
    | Exit
    | Arguments
)
EVENT_TYPES: tuple[type[Event], ...] = get_args(Event)


def event_name(kind: type[Event]) -> str:
    return kind.__name__.lower()


@dataclass(frozen=True)
class StepLines:
    """Many iteration lines, in columns; none is the first of its process."""

    steady: Iteration  # values that all lines share; its other fields are meaningless
    iterations: Sequence[int]  # each larger than the one before by `covers`
    covers: Sequence[int]
    numbers: Sequence[int]  # of the lines in the file
    stamps: bytes | None  # in ISO form, a newline after each
    losses: Mapping[str, Sequence[float]]
    extra: Mapping[str, Sequence[float]]
    varying: Mapping[str, Sequence[float]]
    """Values that differ between lines, by field of `Iteration`."""
    _steady_columns: dict[str, Sequence[float]] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.iterations)

    @property
    def events(self) -> Iterator[Iteration]:
        return map(self.event, range(len(self)))

    def event(self, index: int) -> Iteration:
        varying: dict[str, Any] = {name: values[index] for name, values in self.varying.items()}
        return self.steady._replace(
            iteration=self.iterations[index],
            timestamp=self.stamp(index),
            losses={name: values[index] for name, values in self.losses.items()},
            covers=self.covers[index],
            first_of_process=False,
            extra={name: values[index] for name, values in self.extra.items()},
            line=self.numbers[index],
            **varying,
        )

    def stamp(self, index: int) -> str | None:
        if self.stamps is None:
            return None
        width = self.stamps.index(b"\n") + 1
        if width * len(self) == len(self.stamps):  # all with a fraction, or none
            return self.stamps[width * index : width * (index + 1) - 1].decode("ascii")
        return self._stamp_texts[index]

    @cached_property
    def _stamp_texts(self) -> Sequence[str]:
        return (self.stamps or b"").decode("ascii").splitlines()

    def column(self, name: str) -> Sequence[float] | None:
        """Return the values of a field; None: these lines do not print it."""
        values = self.varying.get(name) or self._steady_columns.get(name)
        if values is None and (value := getattr(self.steady, name)) is not None:
            values = self._steady_columns[name] = [value] * len(self)
        return values

    @cached_property
    def seconds(self) -> Sequence[float]:
        """Seconds of one iteration, by line; empty: these lines do not print it."""
        return [each / 1000.0 for each in self.column("elapsed_ms") or ()]

    def first_bad(self, begin: int) -> int:
        """Return the first line from `begin` on that has a non-finite loss or a skipped iteration;
        if there is none, the number of lines."""
        place = bisect_left(self._bad, begin)
        return self._bad[place] if place < len(self._bad) else len(self)

    @cached_property
    def _bad(self) -> Sequence[int]:
        found = set(compress(range(len(self)), self.column("skipped") or ()))
        for values in self.losses.values():
            if not math.isfinite(sum(values)):
                found.update(at for at, loss in enumerate(values) if not math.isfinite(loss))
        return sorted(found)
