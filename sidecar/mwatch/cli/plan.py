# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan`: how to lay a model out over a cluster, and what it will need.

Exit codes: 0 it works, 1 it cannot work, 2 usage. It asks no cluster and runs nothing.

A command whose flags come in groups, each a NamedTuple: one field, one flag.

For a command with more flags than a signature can show. The fields are annotated as the
parameters of any other command are.

The flags of `mwatch plan`: model, cluster, layout, saving, ways out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from mwatch.cli.output import write

if TYPE_CHECKING:
    from mwatch.plan.report import CapacityPlan


def grouped(*groups: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The function gets one object of each group, in this order."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            command(*(group(*(given[name] for name in group._fields)) for group in groups))

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__signature__ = Signature([each for group in groups for each in _flags(group)])  # type: ignore[attr-defined]
        return call

    return decorate


def _flags(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=group._field_defaults[name],
            annotation=hints[name],
        )
        for name in group._fields
    ]


class RecomputeOption(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


def _count(text: str) -> Any:
    return typer.Option(metavar="N", min=1, max=1_000_000_000, help=text)


class ModelFlags(NamedTuple):
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A preset: 13b.")] = None
    layers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10_000, help="Layers; over the preset's."),
    ] = None
    hidden: Annotated[int | None, _count("Hidden size.")] = None
    heads: Annotated[int | None, _count("Attention heads.")] = None
    seq: Annotated[int | None, _count("Sequence length.")] = None
    vocab: Annotated[int | None, _count("Tokens of the vocabulary, unpadded.")] = None
    max_positions: Annotated[int | None, _count("Positions; else the sequence.")] = None
    ffn: Annotated[int | None, _count("Width of the MLP; else 4 x hidden.")] = None
    groups: Annotated[int | None, _count("Groups of keys and values (GQA).")] = None
    head_size: Annotated[int | None, _count("Channels of a head.")] = None
    llama: Annotated[
        bool, typer.Option("--llama", help="Rotary positions, RMSNorm, SwiGLU, no bias, untied.")
    ] = False
    experts: Annotated[int | None, _count("Experts of a layer.")] = None
    top_k: Annotated[int | None, _count("Experts for each token; else 2.")] = None
    moe_ffn: Annotated[int | None, _count("Width of an expert.")] = None
    shared_ffn: Annotated[int | None, _count("Width of the shared expert.")] = None
    moe_every: Annotated[int | None, _count("Experts in every Nth layer.")] = None


class ClusterFlags(NamedTuple):
    instance: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Of the machines: p5.48xlarge.")
    ] = None
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Machines.")] = 1
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1024, help="Of one machine.")
    ] = None
    gpu_memory: Annotated[
        float | None, typer.Option(metavar="GIB", min=1, max=10_000, help="Of one GPU.")
    ] = None


class LayoutFlags(NamedTuple):
    tp: Annotated[int | None, _count("Tensor parallel.")] = None
    pp: Annotated[int | None, _count("Pipeline parallel.")] = None
    cp: Annotated[int | None, _count("Context parallel.")] = None
    ep: Annotated[int | None, _count("Expert parallel.")] = None
    vpp: Annotated[int | None, _count("Chunks of layers a stage; 1: not interleaved.")] = None
    first_stage_layers: Annotated[int | None, _count("Of the first stage, uneven.")] = None
    last_stage_layers: Annotated[int | None, _count("Of the last stage, uneven.")] = None
    micro_batch: Annotated[int | None, _count("Samples of one forward pass.")] = None
    global_batch: Annotated[int | None, _count("Samples of a step; else some 16 a GPU.")] = None
    recompute: Annotated[
        RecomputeOption | None, typer.Option(help="Activations to be computed again.")
    ] = None
    sequence_parallel: Annotated[bool, typer.Option(help="With TP, as Megatron advises.")] = True
    distributed_optimizer: Annotated[bool, typer.Option(help="Cut its state over DP.")] = True
    flash_attention: Annotated[bool, typer.Option(help="Fused: no scores are kept.")] = True


class SavingFlags(NamedTuple):
    storage: Annotated[
        list[str] | None,
        typer.Option(metavar="TIER[:TIB]|NAME=GB/S", help="amlfs-125:16, nfs=2.5; repeatable."),
    ] = None
    failure_rate: Annotated[
        float,
        typer.Option(metavar="N", min=1e-6, max=1e6, help="Failures in 1000 GPU-days."),
    ] = 0.47
    mtbf: Annotated[
        float | None,
        typer.Option(metavar="HOURS", min=1e-3, max=1e7, help="Between failures of this job."),
    ] = None
    restart_minutes: Annotated[
        float, typer.Option(metavar="N", min=0, max=1e5, help="To be back, without the load.")
    ] = 5.0
    step_seconds: Annotated[
        float | None, typer.Option(metavar="N", min=1e-6, max=1e6, help="Measured; else estimated.")
    ] = None
    mfu: Annotated[
        float, typer.Option(metavar="SHARE", min=0.01, max=1.0, help="For that estimate.")
    ] = 0.4


class OutFlags(NamedTuple):
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
    values: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="Write values for charts/megatron-training."),
    ] = None
    names: Annotated[
        bool, typer.Option("--list", help="Print presets, instance types and storage tiers.")
    ] = False


UNPLANNED = {
    "multi_latent_attention": "the memory of multi-latent attention is not counted",
    "mtp_num_layers": "layers of multi-token prediction are not counted",
    "fp8_param_gather": "weights are counted in 16 bits",
    "pipeline_model_parallel_layout": "use --first-stage-layers and --last-stage-layers",
}
"""Megatron's flags that people may give, and why they are refused."""


class UnplannedFlags(NamedTuple):
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
    """Plan a training run: parallel layout, batch, memory, checkpoints, goodput.

    What you leave open is chosen; what you give is checked, and where it cannot work it is said
    why and what would. Memory of each pipeline stage by part, and the line that Megatron's own
    report would print; speed and goodput are estimates.

    Exit code: 0 it works, 1 it cannot, 2 usage.

    Examples: 'mwatch plan 175b --instance Standard_ND96isr_H100_v5 --nodes 64' and 'mwatch plan
    13b --instance p4d.24xlarge --nodes 2 --tp 2 --pp 4 --values plan.yaml'.
    """
    if out.names:
        from mwatch.cli.render.plan import render_names as render_names

        write(render_names())
        return
    _refuse(unplanned)
    found = _made(model, cluster, layout, saving)
    if out.as_json:
        import json

        from mwatch.plan.report import plan_json

        write(json.dumps(plan_json(found), indent=2))
    elif out.values != Path("-"):
        from mwatch.cli.render.plan import render
        from mwatch.cli.terminal import show

        show(render(found))
    if out.values is not None:
        _hand_over(found, out.values)
    raise typer.Exit(found.exit_code)


def _refuse(asked: UnplannedFlags) -> None:
    """What Megatron can do and this cannot count: better no figure than a wrong one."""
    from mwatch.errors import InputError

    for name, value in asked._asdict().items():
        if value:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag} is not planned: {UNPLANNED[name]}; leave it out for the rest")


def _made(
    model: ModelFlags, cluster: ClusterFlags, layout: LayoutFlags, saving: SavingFlags
) -> CapacityPlan:
    from mwatch.plan import report as app
    from mwatch.plan import request as words

    preset = None if model.model is None else words.preset(model.model)
    machines = words.cluster(cluster.instance, cluster.gpus, cluster.gpu_memory, cluster.nodes)
    again = None if layout.recompute is None else layout.recompute.value
    given = {
        "tensor": layout.tp, "pipeline": layout.pp, "context": layout.cp, "expert": layout.ep,
        "virtual": layout.vpp, "micro_batch": layout.micro_batch,
        "global_batch": layout.global_batch, "recompute": words.recompute(again),
        "sequence_parallel": layout.sequence_parallel,
        "distributed_optimizer": layout.distributed_optimizer,
        "flash_attention": layout.flash_attention,
        "first_layers": layout.first_stage_layers, "last_layers": layout.last_stage_layers,
    }  # fmt: skip
    return app.make(
        app.PlanRequest(
            words.name(model.model),
            words.shape(preset, *_shape(model)),
            machines,
            words.fixed(preset, given),
            words.stores(saving.storage or (), machines.machine.cloud),
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


def _hand_over(found: CapacityPlan, path: Path) -> None:
    from mwatch.errors import InputError
    from mwatch.plan.report import as_yaml, notes, values

    text = as_yaml(values(found), notes(found))
    if path == Path("-"):
        write(text.rstrip("\n"))
        return
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
