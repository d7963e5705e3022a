# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan` on one screen: layout, memory by part and stage, checkpoints, problems; names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from mwatch.cli.formats import duration
from mwatch.cli.terminal import table

if TYPE_CHECKING:
    from mwatch.cli.terminal import Line
    from mwatch.plan.report import CapacityPlan, SaveCost


_GIB = 1024.0**3
_TIB = 1024.0**4
_LEVELS = {"error": "bold red", "warning": "yellow"}
_PARTS = ("weights", "gradients", "optimizer", "activations", "loss", "allocator", "runtime")
_MOST_STAGES = 12
_T = TypeVar("_T")


def render(plan: CapacityPlan) -> list[Line]:
    shape = plan.request.shape
    size = f"{plan.parameters / 1e9:.2f} B parameters"
    of = f"{shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads"
    lines: list[Line] = [
        [(plan.request.model, "bold"), (f"  {size}: {of}, sequence {shape.sequence}", "")],
        [(plan.request.cluster.text, "dim")],
        [("", "")],
        *_layout(plan),
    ]
    if plan.can_be_counted:
        lines += [[("", "")], *_memory(plan), [("", "")], *_saving(plan)]
    return [*lines, [("", "")], *_problems(plan)]


def _layout(plan: CapacityPlan) -> list[Line]:
    layout = plan.layout
    more = [f"micro batch {layout.micro_batch}", f"global batch {layout.global_batch}"]
    more.append(f"gradient accumulation {layout.microbatches}")
    lines: list[Line] = [[("layout    ", ""), (layout.described, "bold")]]
    lines.append([("batch     ", ""), (", ".join(more), "")])
    if plan.can_be_counted:
        step = plan.step_seconds
        word = "measured" if plan.request.step_seconds is not None else "estimate"
        time = "" if step is None else f", a step of {duration(step)} ({word})"
        lines.append([("pipeline  ", ""), (f"{plan.bubble:.1%} idle{time}", "")])
    return lines


def _memory(plan: CapacityPlan) -> list[Line]:
    most = plan.request.cluster.memory_bytes
    rows: list[tuple[str, ...]] = [("GiB, stage", *_PARTS, "total", "of GPU")]
    stages = plan.stages
    for each in _shown(stages):
        cells = [f"{each.parts[part] / _GIB:.2f}" for part in _PARTS]
        rows.append(
            (str(each.stage), *cells, f"{each.total / _GIB:.1f}", f"{each.total / most:.0%}")
        )
    lines = _table(rows)
    if len(stages) > _MOST_STAGES:
        lines.append([(f"{len(stages) - len(rows) + 1} stages between them left out", "dim")])
    report = plan.report
    if report is not None:
        message = f"weight and optimizer={report.weight_and_optimizer:.2f} MB, "
        message += f"activation={report.activation:.2f} MB, total={report.total:.2f} MB"
        lines.append([(f"Megatron would print: {message}", "dim")])
        if plan.unlisted:
            lines.append([(f"and not count: {', '.join(plan.unlisted)}", "dim")])
    return lines


def _shown(stages: Sequence[_T]) -> Sequence[_T]:
    """Keep the first and the last stages: they hold most."""
    if len(stages) <= _MOST_STAGES:
        return stages
    half = _MOST_STAGES // 2
    return [*stages[:half], *stages[-half:]]


def _saving(plan: CapacityPlan) -> list[Line]:
    size = plan.checkpoint_bytes
    amount = f"{size / _TIB:.2f} TiB" if size >= _TIB else f"{size / _GIB:.1f} GiB"
    between = duration(plan.seconds_between_failures)
    head = f"checkpoint {amount}, {size / plan.parameters:.0f} bytes a parameter"
    head += f"; a failure every {between}"
    rows: list[tuple[str, ...]] = []
    rows.append(("storage", "GB/s", "write", "save every", "goodput", "async: every", "goodput"))
    rows += [_save_row(plan, each) for each in plan.saves]
    return [[(head, "")], *_table(rows)]


def _save_row(plan: CapacityPlan, save: SaveCost) -> tuple[str, ...]:
    cells = [save.store.text, f"{save.store.gbytes:.1f}", duration(save.write_seconds)]
    for each in (save.waiting, save.background):
        steps = plan.steps(each.interval_seconds)
        count = "" if steps is None else f" = {steps} steps"
        cells += [f"{duration(each.interval_seconds)}{count}", f"{each.goodput:.1%}"]
    return tuple(cells)


def _problems(plan: CapacityPlan) -> list[Line]:
    lines: list[Line] = []
    for each in plan.problems:
        lines.append([(f"{each.level:<8}", _LEVELS[each.level]), (each.what, "")])
        lines.append([(f"        fix: {each.fix}", "dim")])
    if plan.works:
        return [*lines, [("it works", "bold green")]]
    return [*lines, _would_work(plan)]


def _would_work(plan: CapacityPlan) -> Line:
    if plan.other is not None:
        where = "" if plan.nodes is None else f"{plan.nodes} such machines with "
        batch = f"micro batch {plan.other.micro_batch}, global batch {plan.other.global_batch}"
        return [("would work: ", "bold"), (f"{where}{plan.other.described}, {batch}", "")]
    if plan.is_shape:
        return [("nothing works with such machines: take larger GPUs", "bold red")]
    return [("no layout can work for this shape", "bold red")]


def _table(rows: Sequence[tuple[str, ...]]) -> list[Line]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[Line] = []
    for number, row in enumerate(rows):
        cells = [
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append([("  ".join(cells), "" if number else "dim")])
    return lines


def render_names() -> str:
    from mwatch.plan.request import instances, known_presets, tiers

    return "\n\n".join("\n".join(table(rows)) for rows in (known_presets(), instances(), tiers()))
