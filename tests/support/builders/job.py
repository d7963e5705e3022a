# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Readable jobs for the tests of detectors and decisions: built by hand, without `state`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from mwatch.config import catalogue
from mwatch.model.event import Error, Fault, Iteration, StepLines
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Detector, Finding
from mwatch.model.job import (
    Attempt,
    ErrorSeen,
    FaultSeen,
    Job,
    KnownCheckpoint,
    Layout,
    RankState,
    SignSeen,
    SourceStatus,
)
from mwatch.model.observation import Sign, SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.model.step import PlacedLines, Step

START = 1_000_000.0
"""When the built attempt started."""


@cache
def entries() -> dict[str, CatalogueEntry]:
    return {entry.id: entry for entry in catalogue.load()}


def placed_lines(
    count: int, losses: Mapping[str, Sequence[float]], columns: Mapping[str, Sequence[float]]
) -> PlacedLines:
    """Lines of a recording at log interval 1, one second a line; only what has a column is
    printed."""
    steady = Iteration(*[None] * len(Iteration._fields))  # type: ignore[arg-type]
    steady = steady._replace(flavour="megatron", file="trainer.log")
    numbers = list(range(1, count + 1))
    lines = StepLines(steady, numbers, [1] * count, numbers, None, losses, {}, columns)
    return PlacedLines("pod-0", [float(number) for number in numbers], lines)


def step(iteration: int, **change: Any) -> Step:
    """A healthy bf16 line at log interval 1, one second a step; `loss=None`: no loss printed."""
    loss = change.pop("loss", 2.0)
    losses = {} if loss is None else {"lm loss": loss}
    usual: dict[str, Any] = {
        "at": START + 100.0 + iteration,
        "iteration": iteration,
        "covers": 1,
        "new": change.get("covers", 1),
        "seconds": 1.0,
        "losses": losses,
        "loss_scale": 1.0,
        "grad_norm": 0.8,
        "learning_rate": 1e-4,
        "consumed_samples": iteration * 32,
        "batch_size": 32,
        "skipped": 0,
        "skipped_printed": change.get("skipped", 0),
        "nan": 0,
        "throughput_tflops": None,
        "is_first_of_process": False,
        "flavour": "megatron",
        "stream": "pod-0",
        "file": "trainer.log",
        "line": iteration,
    }
    return Step(**(usual | change))


def steps(losses: Iterable[float | None], *, first: int = 1, **change: Any) -> list[Step]:
    return [step(first + i, loss=loss, **change) for i, loss in enumerate(losses)]


def job(
    lines: Sequence[Step] = (),
    *,
    phase: JobPhase = JobPhase.TRAINING,
    now: float | None = None,
    sights: Iterable[Source] = (Source.LOG,),
    layout: Layout | None = None,
    **attempt: Any,
) -> Job:
    """A job in its first attempt that has printed `lines`; `attempt` sets fields of Attempt."""
    last = lines[-1] if lines else None
    moment = last.at if last else START
    fields: dict[str, Any] = {
        "number": 1,
        "started_at": START,
        "phase": phase,
        "phase_since": moment,
        "first_iteration": lines[0].first_covered if lines else None,
        "iteration": last.iteration if last else None,
        "progress_at": moment,
        "line_at": last.at if last else None,
        "streams": {"pod-0"},
    } | attempt
    built = Job("run", entries(), now=moment if now is None else now)
    built.attempt = Attempt(**fields)
    built.attempt.steps.extend(lines)
    built.has_started = True
    built.layout = layout or Layout(world_size=8, log_interval=1, total_iterations=1000)
    built.best_iteration = built.attempt.iteration
    built.sources = {sight: SourceStatus(True, START, "up") for sight in sights}
    built.calibration.steps.extend(line.seconds for line in lines if line.seconds is not None)
    return built


def fault(
    id: str, *, at: float = START + 50, stream: str = "pod-0", text: str | None = None, **more: Any
) -> FaultSeen:
    """A line that matched the catalogue entry `id`."""
    entry = entries()[id]
    usual: dict[str, Any] = {
        "node": None,
        "gpu": None,
        "role": entry.role.value,
        "timestamp": None,
        "rank": None,
        "file": "trainer.log",
        "line": 7,
    }
    said = text or (entry.examples[0] if entry.examples else entry.title)
    return FaultSeen(at, stream, Fault(id=id, text=said, **(usual | more)), entry)


def error(
    kind: Any = "traceback", *, at: float = START + 50, stream: str = "pod-0", **more: Any
) -> ErrorSeen:
    usual: dict[str, Any] = dict.fromkeys(Error._fields)
    usual |= {"kind": kind, "message": "", "file": "trainer.log", "line": 9}
    return ErrorSeen(at, stream, Error(**(usual | more)))


def rank(number: int, iteration: int | None, *, at: float, **more: Any) -> RankState:
    usual: dict[str, Any] = {
        "moved_at": at,
        "progressed_at": at,
        "phase": "training",
        "stack": "a",
        "pid": 100 + number,
        "stream": f"pod-{number}",
    }
    return RankState(rank=number, at=at, iteration=iteration, **(usual | more))


def add_sign(
    built: Job,
    source: SignSource,
    state: SignState,
    *,
    rank: int | None = None,
    at: float | None = None,
    text: str = "",
    stream: str = "pod-0",
    first_at: float | None = None,
) -> None:
    said = Sign(source, state, rank, text or f"{source} says {state}")
    moment = built.now if at is None else at
    built.attempt.signs[source, rank, stream] = SignSeen(moment, stream, said, first_at)


def add_checkpoints(built: Job, *iterations: int, **more: Any) -> None:
    """Saved, as the log said, each a moment after its iteration's line."""
    for iteration in iterations:
        usual: dict[str, Any] = {
            "saved_at": START + 100.5 + iteration,
            "attempt": built.attempt.number,
            "is_saved": True,
        }
        built.checkpoints[iteration] = KnownCheckpoint(iteration, **(usual | more))


def found(detector: Detector, built: Job, settings: Settings | None = None) -> list[Finding]:
    """As the engine asks it: without any of its sights there is no verdict."""
    if detector.needs and not any(built.sees(sight) for sight in detector.needs):
        return []
    return detector.detect(built, settings or Settings())
