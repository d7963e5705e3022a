# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The status area of a watched run: progress, speed, loss curve, GPUs, findings.

The loop of the run creates an immutable `Status`; a thread draws it for the width that the terminal
has at that time. In a narrow terminal the border is dropped first, then the ends of lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from rich.console import Group, OverflowMethod, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mwatch.cli.shared.formats import duration
from mwatch.cli.shared.terminal import plain
from mwatch.model.finding import Severity
from mwatch.stats import median

if TYPE_CHECKING:
    from mwatch.engine.engine import Assessment
    from mwatch.model.job import Job
    from mwatch.model.snapshot.pod import Gpu
    from mwatch.model.snapshot.snapshot import Snapshot

NARROW = 60
"""Number of columns below which the area has no border."""
SEVERITY_STYLES = {"info": "cyan", "warning": "yellow", "critical": "bold red"}
_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE_STEPS = 512
_CURVE_COLUMNS = 32
_RECENT = 32
"""Number of newest steps from which the usual time of a step is taken."""
_MAX_FINDINGS = 3
_IDLE_SHARE = 0.2
"""A GPU whose utilization is this much below the average is named."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Status:
    attempt: int
    phase: str
    iteration: int | None = None
    total: int | None = None
    seconds_left: float | None = None
    speed: tuple[str, ...] = ()
    loss_name: str = "loss"
    loss: float | None = None
    curve: tuple[float, ...] = ()
    numbers: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    """Text and style."""


def status_of(job: Job, assessment: Assessment, snapshot: Snapshot) -> Status:
    attempt, numbers = job.attempt, snapshot.numbers
    steps = list(islice(reversed(attempt.steps), _CURVE_STEPS))[::-1]
    name = next((key for step in reversed(steps) for key in step.losses), "loss")
    losses = (step.losses.get(name) for step in steps)
    return Status(
        attempt=attempt.number,
        phase=attempt.phase.value.replace("-", " "),
        iteration=attempt.iteration,
        total=snapshot.total_iterations,
        seconds_left=_seconds_left(job, assessment),
        speed=tuple(_speed(snapshot)),
        loss_name=plain(name)[:24],
        loss=numbers.losses.get(name),
        curve=tuple(each for each in losses if each is not None and math.isfinite(each)),
        numbers=tuple(_numbers(snapshot)),
        gpus=tuple(_gpus(snapshot.gpus)),
        saves=tuple(_saves(snapshot)),
        findings=tuple(
            (plain(each.summary), SEVERITY_STYLES[each.severity.value])
            for each in assessment.findings[:_MAX_FINDINGS]
        ),
    )


def _seconds_left(job: Job, assessment: Assessment) -> float | None:
    """Estimate from the median time of the newest steps; None: unknown, or training is broken."""
    done, total = job.attempt.iteration, job.layout.total_iterations
    recent = islice(reversed(job.attempt.steps), _RECENT)
    known = [each.seconds for each in recent if each.seconds is not None]
    is_broken = any(each.severity is Severity.CRITICAL for each in assessment.findings)
    if done is None or not total or done >= total or not known or is_broken:
        return None
    return median(known) * (total - done)


def _speed(snapshot: Snapshot) -> Iterator[str]:
    numbers = snapshot.numbers
    if numbers.step_seconds is not None:
        yield f"{numbers.step_seconds:.3f} s/step"
    if numbers.tokens_per_second is not None:
        yield f"{numbers.tokens_per_second:,.0f} tokens/s"
    if numbers.throughput_tflops is not None:
        yield f"{numbers.throughput_tflops:.1f} TFLOP/s per GPU"


def _numbers(snapshot: Snapshot) -> Iterator[str]:
    numbers = snapshot.numbers
    if numbers.grad_norm is not None:
        yield f"grad norm {numbers.grad_norm:.3f}"
    if numbers.loss_scale is not None:
        yield f"loss scale {numbers.loss_scale:g}"


def _gpus(found: Sequence[Gpu]) -> Iterator[str]:
    """State of the GPUs of the job, if known; otherwise of all GPUs of the machine."""
    mine = [each for each in found if each.rank is not None] or list(found)
    up = [each for each in mine if each.is_up]
    if not mine:
        yield "none found"
        return
    yield f"{len(up)} up"
    if len(up) < len(mine):
        yield "lost: " + ", ".join(str(each.number) for each in mine if not each.is_up)
    used = [(each.utilization, each.number) for each in up if each.utilization is not None]
    if used:
        average, (lowest, number) = sum(use for use, _ in used) / len(used), min(used)
        odd = f" (GPU {number}: {lowest:.0%})" if lowest < average - _IDLE_SHARE else ""
        yield f"use {average:.0%}{odd}"
    heat = [each.temperature_celsius for each in up if each.temperature_celsius is not None]
    if heat:
        yield f"{max(heat):.0f} °C"
    fullest = max(up, key=lambda each: each.memory_used_bytes or 0.0, default=None)
    if fullest is not None and fullest.memory_used_bytes and fullest.memory_total_bytes:
        whole = fullest.memory_total_bytes / _GIB
        yield f"{fullest.memory_used_bytes / _GIB:.0f} of {whole:.0f} GiB"
    power = [each.power_watts for each in up if each.power_watts is not None]
    if power:
        yield f"{sum(power):,.0f} W"


def _saves(snapshot: Snapshot) -> Iterator[str]:
    newest, good = snapshot.latest_checkpoint, snapshot.good_checkpoint
    yield "none yet" if newest is None else f"{newest.iteration}"
    if newest is not None and (good is None or good.iteration != newest.iteration):
        yield "no good one" if good is None else f"good: {good.iteration}"
    if snapshot.goodput is not None:
        yield f"goodput {snapshot.goodput:.0%}"


def sparkline(values: Sequence[float], columns: int) -> str:
    """The values as bars in at most `columns` columns; empty if there are too few values."""
    count = min(columns, len(values))
    if count < 2:
        return ""
    edges = [place * len(values) // count for place in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    if not math.isfinite(span):
        return ""
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((each - low) / span * top) if span else 0] for each in means)


def area(
    status: Status | None,
    *,
    title: str,
    page: str,
    events: Sequence[Text],
    line: str,
    width: int,
    is_ascii: bool,
) -> RenderableType:
    """`line`: the unfinished line of the trainer's output, such as a progress bar."""
    table = Table.grid(padding=(0, 1), expand=True)
    is_narrow = width < NARROW
    if not is_narrow:
        table.add_column(style="dim", no_wrap=True, min_width=10)
    overflow: OverflowMethod = "crop" if is_ascii else "ellipsis"
    table.add_column(ratio=1, no_wrap=True, overflow=overflow)
    for name, row in _rows(status, page, is_ascii=is_ascii):
        if not is_narrow:
            table.add_row(name, row)
        elif isinstance(row, Text):
            table.add_row(Text.assemble((f"{name} ", "dim"), row))
        else:
            table.add_row(row)
    above, head = Text(line, "dim"), Text(title, "cyan")
    for text in (above, head, *events):
        text.no_wrap, text.overflow = True, overflow
    body = Group(*([above] if line else []), table, *events)
    if is_narrow:
        return Group(head, body)
    return Panel(body, title=Text(title), title_align="left", border_style="cyan")


def _rows(
    status: Status | None, page: str, *, is_ascii: bool
) -> Iterator[tuple[str, RenderableType]]:
    dot = ", " if is_ascii else " · "
    if status is None:
        yield "state", Text("starting")
    else:
        yield "iteration", _progress(status, dot)
        yield status.phase, Text(dot.join((*status.speed, f"attempt {status.attempt}")))
        if status.loss is not None or status.curve:
            loss = "not printed" if status.loss is None else f"{status.loss:.4f}"
            curve = "" if is_ascii else sparkline(status.curve, _CURVE_COLUMNS)
            more = "".join(f"{dot}{each}" for each in status.numbers)
            yield status.loss_name, Text.assemble(f"{loss} ", (curve, "green"), more)
        yield "GPUs", Text(dot.join(status.gpus))
        yield "checkpoint", Text(dot.join(status.saves))
        for text, style in status.findings:
            yield "finding", Text(text, style)
    yield "page", Text(page)


def _progress(status: Status, dot: str) -> RenderableType:
    done, total = status.iteration, status.total
    eta = "" if status.seconds_left is None else f"{dot}ETA {duration(status.seconds_left)}"
    if done is None or not total:
        return Text(f"{'none yet' if done is None else done}{eta}")
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    row.add_column(no_wrap=True)
    share = min(1.0, done / total)
    row.add_row(ProgressBar(total, done), f"{done}/{total}{dot}{share:.0%}{eta}")
    return row
