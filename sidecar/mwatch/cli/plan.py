# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan`: plan the layout of a model on a cluster, and estimate its needs.

The command has too many flags for one readable signature, so they are grouped. Each group is a
NamedTuple with the heading of the group as its docstring; each field is one flag, annotated as in
any other command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

import typer

from mwatch.cli.shared.formats import duration
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import argument, flag, option
from mwatch.cli.shared.terminal import show, table, write

if TYPE_CHECKING:
    from mwatch.cli.shared.terminal import Line
    from mwatch.plan.report import CapacityPlan, SaveCost


def grouped(*groups: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call the function with one object of each group, in this order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            command(*(group(*(given[name] for name in group._fields)) for group in groups))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__signature__ = Signature([each for group in groups for each in _flags(group)])  # type: ignore[attr-defined]
        return call

    return decorate


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in hints.values():
        each.__metadata__[0].rich_help_panel = group.__doc__
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=group._field_defaults[name],
            annotation=hints[name],
        )
        for name in group._fields
    ]


def _count(text: str) -> Any:
    return option("N", text, min=1, max=1_000_000_000)


class ModelFlags(NamedTuple):
    """Model"""

    model: Annotated[
        str | None, argument("MODEL", "Start from this preset, for example 13b; --list prints all.")
    ] = None
    layers: Annotated[
        int | None,
        option("N", "Set the number of layers, instead of the preset's.", min=1, max=10_000),
    ] = None
    hidden: Annotated[int | None, _count("Set the hidden size.")] = None
    heads: Annotated[int | None, _count("Set the number of attention heads.")] = None
    seq: Annotated[int | None, _count("Set the sequence length.")] = None
    vocab: Annotated[int | None, _count("Set the vocabulary size, unpadded.")] = None
    max_positions: Annotated[
        int | None, _count("Set the positions; by default the sequence length.")
    ] = None
    ffn: Annotated[int | None, _count("Set the MLP width; by default 4 x hidden.")] = None
    groups: Annotated[int | None, _count("Set the key and value groups (GQA).")] = None
    head_size: Annotated[int | None, _count("Set the channels per head.")] = None
    llama: Annotated[
        bool, flag("--llama", "Use rotary positions, RMSNorm, SwiGLU, no bias, untied output.")
    ] = False
    experts: Annotated[int | None, _count("Set the experts per layer.")] = None
    top_k: Annotated[int | None, _count("Set the experts per token; by default 2.")] = None
    moe_ffn: Annotated[int | None, _count("Set the width of an expert.")] = None
    shared_ffn: Annotated[int | None, _count("Set the width of the shared expert.")] = None
    moe_every: Annotated[int | None, _count("Put experts in every Nth layer.")] = None


class ClusterFlags(NamedTuple):
    """Cluster"""

    instance: Annotated[
        str | None, option("TYPE", "Use machines of this type, for example p5.48xlarge.")
    ] = None
    nodes: Annotated[int, option("N", "Use this many machines.", min=1, max=100_000)] = 1
    gpus: Annotated[int | None, option("N", "Set the GPUs per machine.", min=1, max=1024)] = None
    gpu_memory: Annotated[
        float | None, option("GIB", "Set the memory of one GPU.", min=1, max=10_000)
    ] = None


class LayoutFlags(NamedTuple):
    """Layout (chosen where not given)"""

    tp: Annotated[int | None, _count("Set the tensor parallel size.")] = None
    pp: Annotated[int | None, _count("Set the pipeline parallel size.")] = None
    cp: Annotated[int | None, _count("Set the context parallel size.")] = None
    ep: Annotated[int | None, _count("Set the expert parallel size.")] = None
    vpp: Annotated[int | None, _count("Set the chunks per stage; 1 is not interleaved.")] = None
    first_stage_layers: Annotated[int | None, _count("Set the layers of the first stage.")] = None
    last_stage_layers: Annotated[int | None, _count("Set the layers of the last stage.")] = None
    micro_batch: Annotated[int | None, _count("Set the samples per forward pass.")] = None
    global_batch: Annotated[
        int | None, _count("Set the samples per step; by default about 16 per GPU.")
    ] = None
    recompute: Annotated[
        Literal["none", "selective", "full"] | None,
        option("none|selective|full", "Recompute activations this way."),
    ] = None
    sequence_parallel: Annotated[bool, typer.Option(help="Use sequence parallelism with TP.")] = (
        True
    )
    distributed_optimizer: Annotated[bool, typer.Option(help="Shard the optimizer over DP.")] = True
    flash_attention: Annotated[bool, typer.Option(help="Use fused attention.")] = True


class SavingFlags(NamedTuple):
    """Checkpoints and goodput"""

    storage: Annotated[
        list[str] | None,
        option("TIER|NAME=GB/S", "Save to this storage: amlfs-125:16, nfs=2.5; repeatable."),
    ] = None
    failure_rate: Annotated[
        float, option("N", "Expect this many failures in 1000 GPU-days.", min=1e-6, max=1e6)
    ] = 0.47
    mtbf: Annotated[
        float | None,
        option("HOURS", "Expect this time between failures of the job.", min=1e-3, max=1e7),
    ] = None
    restart_minutes: Annotated[
        float,
        option("MINUTES", "Expect a restart to take this long, without loading.", min=0, max=1e5),
    ] = 5.0
    step_seconds: Annotated[
        float | None,
        option(
            "SECONDS", "Use this measured step time; by default it is estimated.", min=1e-6, max=1e6
        ),
    ] = None
    mfu: Annotated[
        float,
        option(
            "SHARE", "Estimate the step time with this model FLOPs utilization.", min=0.01, max=1.0
        ),
    ] = 0.4


class OutFlags(NamedTuple):
    """Options"""

    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False
    values: Annotated[
        Path | None,
        option("FILE|-", "Write Helm values for charts/megatron-training; - is standard output."),
    ] = None
    names: Annotated[bool, flag("--list", "Print presets, instance types and storage tiers.")] = (
        False
    )


UNPLANNED = {
    "multi_latent_attention": "mwatch does not count the memory of multi-latent attention",
    "mtp_num_layers": "mwatch does not count layers of multi-token prediction",
    "fp8_param_gather": "mwatch counts weights in 16 bits",
    "pipeline_model_parallel_layout": "use --first-stage-layers and --last-stage-layers",
}
"""Flags of Megatron that are refused, with the reason."""


class UnplannedFlags(NamedTuple):
    """Not supported"""

    multi_latent_attention: Annotated[
        bool, typer.Option("--multi-latent-attention", hidden=True)
    ] = False
    mtp_num_layers: Annotated[int | None, typer.Option(hidden=True)] = None
    fp8_param_gather: Annotated[bool, typer.Option("--fp8-param-gather", hidden=True)] = False
    pipeline_model_parallel_layout: Annotated[str | None, typer.Option(hidden=True)] = None


@grouped(ModelFlags, ClusterFlags, LayoutFlags, SavingFlags, OutFlags, UnplannedFlags)
def plan(
    model: ModelFlags, cluster: ClusterFlags, layout: LayoutFlags, saving: SavingFlags,
    out: OutFlags, unplanned: UnplannedFlags,
) -> None:  # fmt: skip
    """Plan a run: parallel layout, memory, checkpoints, goodput.

    Options that you leave out are chosen; options that you give are checked, and a combination that
    cannot work is refused with the reason and one that does. The plan shows the memory of each
    pipeline stage by part, as Megatron's own report prints it. Speed and goodput are estimates.

    Exit codes: 0 the plan works, 1 it cannot work, 2 bad usage.

    Example: mwatch plan 175b --instance Standard_ND96isr_H100_v5 --nodes 64

    Example: mwatch plan 13b --instance p4d.24xlarge --nodes 2 --tp 2 --pp 4
    """
    if out.names:
        write(render_names())
        return
    _refuse(unplanned)
    found = _made(model, cluster, layout, saving)
    if out.as_json:
        from mwatch.plan.report import plan_json

        write_json("plan", plan_json(found))
    elif out.values != Path("-"):
        show(render(found))
    if out.values is not None:
        _write_values(found, out.values)
    raise typer.Exit(found.exit_code)


def _refuse(asked: UnplannedFlags) -> None:
    """Refuse what Megatron can do and this plan does not count: no figure beats a wrong one."""
    from mwatch.errors import InputError

    for name, value in asked._asdict().items():
        if value:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{flag} is not supported: {UNPLANNED[name]}; remove it to plan the rest"
            )


def _made(
    model: ModelFlags, cluster: ClusterFlags, layout: LayoutFlags, saving: SavingFlags
) -> CapacityPlan:
    from mwatch.plan import choose
    from mwatch.plan import report as app

    preset = None if model.model is None else choose.preset(model.model)
    machines = choose.cluster(cluster.instance, cluster.gpus, cluster.gpu_memory, cluster.nodes)
    given = {
        "tensor": layout.tp, "pipeline": layout.pp, "context": layout.cp, "expert": layout.ep,
        "virtual": layout.vpp, "micro_batch": layout.micro_batch,
        "global_batch": layout.global_batch, "recompute": choose.recompute(layout.recompute),
        "sequence_parallel": layout.sequence_parallel,
        "distributed_optimizer": layout.distributed_optimizer,
        "flash_attention": layout.flash_attention,
        "first_layers": layout.first_stage_layers, "last_layers": layout.last_stage_layers,
    }  # fmt: skip
    return app.make(
        app.PlanRequest(
            choose.name(model.model),
            choose.shape(preset, *_shape(model)),
            machines,
            choose.fixed(preset, given),
            choose.stores(saving.storage or (), machines.machine.cloud),
            saving.failure_rate,
            saving.mtbf,
            saving.restart_minutes * 60,
            saving.step_seconds,
            saving.mfu,
        )
    )


def _shape(model: ModelFlags) -> tuple[dict[str, object], dict[str, object]]:
    given: dict[str, object] = {
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads,
        "sequence": model.seq, "vocabulary": model.vocab, "max_positions": model.max_positions,
        "ffn": model.ffn, "groups": model.groups, "head_size": model.head_size,
    }  # fmt: skip
    if model.llama:
        given |= {"gated": True, "rms_norm": True, "bias": False}
        given |= {"learned_positions": False, "tied": False}
    experts: dict[str, object] = {
        "count": model.experts, "top_k": model.top_k, "ffn": model.moe_ffn,
        "shared_ffn": model.shared_ffn, "every": model.moe_every,
    }  # fmt: skip
    return given, experts


def _write_values(found: CapacityPlan, path: Path) -> None:
    from mwatch.plan.report import as_yaml, notes, values
    from mwatch.report.files import write_target

    text = as_yaml(values(found), notes(found))
    if path == Path("-"):
        write(text.rstrip("\n"))
    else:
        write_target(path, text.encode())


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
    from mwatch.plan.choose import instances, known_presets, tiers

    return "\n\n".join("\n".join(table(rows)) for rows in (known_presets(), instances(), tiers()))
