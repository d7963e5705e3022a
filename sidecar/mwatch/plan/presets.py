# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The models that people name, as data: one table for `mwatch plan`, the charts' tests and docs.

Shapes come from the workloads we serve. A name is not a size: `857m` has 0.35 and `375m` 0.06
billion parameters by its shape, and the shape is what is trained.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mwatch.plan.shape import ModelShape


class Preset(NamedTuple):
    shape: ModelShape
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    global_batch: int | None = None
    """None: 16 for each GPU."""
    trainer: Literal["megatron", "llm-foundry"] = "megatron"
    source: str = ""


_AKS = "Megatron-LM on AKS"
_HYPERPOD = "Megatron-LM on HyperPod EKS; arXiv 2104.04473, table 1"
_BOX = "torchrun on a GPU box"
_FOUNDRY = "LLM-Foundry v0.18.0, scripts/train/yamls/pretrain"


def _aks(layers: int, hidden: int, heads: int, sequence: int, tensor: int, pipeline: int) -> Preset:
    return Preset(ModelShape(layers, hidden, heads, sequence), tensor, pipeline, source=_AKS)


def _hyperpod(layers: int, hidden: int, heads: int, tensor: int, pipeline: int) -> Preset:
    return Preset(ModelShape(layers, hidden, heads, 2048), tensor, pipeline, source=_HYPERPOD)


def _box(layers: int, hidden: int, heads: int) -> Preset:
    return Preset(ModelShape(layers, hidden, heads, 1024), source=_BOX)


def _mpt(layers: int, hidden: int, heads: int, whole: int, micro: int) -> Preset:
    """Their bias stays, positions are learned; vocabulary as in the YAML."""
    shape = ModelShape(layers, hidden, heads, 2048, vocabulary=50368)
    return Preset(shape, 1, 1, micro, whole, "llm-foundry", _FOUNDRY)


PRESETS: dict[str, Preset] = {
    "175b": _aks(96, 12288, 96, 2048, 8, 16),
    "30b": _aks(48, 7168, 56, 2048, 4, 8),
    "13b": _aks(40, 5120, 40, 2048, 2, 4),
    "1.3b": _aks(24, 2048, 16, 2048, 1, 2),
    "857m": _aks(24, 1024, 16, 2048, 1, 1),
    "375m": _aks(12, 512, 8, 1024, 1, 1),
    "125m": _aks(12, 768, 12, 1024, 1, 1),
    # TP and PP as in the paper's table, which the document takes its shapes from.
    "1.7B": _hyperpod(24, 2304, 24, 1, 1),
    "3.6B": _hyperpod(30, 3072, 32, 2, 1),
    "7.5B": _hyperpod(36, 4096, 32, 4, 1),
    "18.4B": _hyperpod(40, 6144, 48, 8, 1),
    "39.1B": _hyperpod(48, 8192, 64, 8, 2),
    "76.1B": _hyperpod(60, 10240, 80, 8, 4),
    "145.6B": _hyperpod(80, 12288, 96, 8, 8),
    "310.1B": _hyperpod(96, 16384, 128, 8, 16),
    "345m": _box(24, 1024, 16),
    "gpt2-large": _box(36, 1280, 20),
    "gpt2-xl": _box(48, 1600, 25),
    "mpt-125m": _mpt(12, 768, 12, 256, 16),
    "mpt-350m": _mpt(24, 1024, 16, 256, 8),
    "mpt-760m": _mpt(24, 1536, 12, 256, 4),
    "mpt-1b": _mpt(24, 2048, 16, 512, 4),
    "mpt-3b": _mpt(32, 2560, 20, 512, 8),
    "mpt-7b": _mpt(32, 4096, 32, 1024, 8),
    "mpt-13b": _mpt(40, 5120, 40, 1024, 8),
    "mpt-30b": _mpt(48, 7168, 56, 2048, 8),
    "mpt-70b": _mpt(80, 8192, 64, 2048, 4),
}


def find(name: str) -> Preset | None:
    """By its name, capital letters or not; `7.5b` and `7.5B` are the same."""
    by_name = {each.lower(): preset for each, preset in PRESETS.items()}
    return by_name.get(name.strip().lower())
