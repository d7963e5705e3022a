# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The flags of `mwatch plan`: model, cluster, layout, saving, ways out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer


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
