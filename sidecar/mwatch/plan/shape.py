# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The shape of a transformer, as defined by Megatron-LM's arguments, and the presets by name.

A preset's name is not its size: `857m` has 0.35 and `375m` 0.06 billion parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

GPT2_VOCABULARY = 50257
_AKS = "Megatron-LM on AKS"
_HYPERPOD = "Megatron-LM on HyperPod EKS; arXiv 2104.04473, table 1"
_BOX = "torchrun on a GPU box"
_FOUNDRY = "LLM-Foundry v0.18.0, scripts/train/yamls/pretrain"


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts; `every`: 1: in all layers, 2: in every second layer."""

    count: int
    top_k: int = 2
    ffn: int | None = None  # None: as wide as the dense MLP
    shared_ffn: int = 0
    every: int = 1


@dataclass(frozen=True, slots=True)
class ModelShape:
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = GPT2_VOCABULARY
    max_positions: int | None = None  # None: as long as the sequence
    ffn: int | None = None  # None: four times hidden
    groups: int | None = None  # key-value groups; None: one per head
    head_size: int | None = None
    gated: bool = False
    bias: bool = True
    learned_positions: bool = True
    rms_norm: bool = False
    tied: bool = True
    experts: Experts | None = None

    @property
    def ffn_size(self) -> int:
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def positions(self) -> int:
        return self.sequence if self.max_positions is None else self.max_positions

    @property
    def key_groups(self) -> int:
        return self.heads if self.groups is None else self.groups

    @property
    def channels(self) -> int:
        return self.hidden // self.heads if self.head_size is None else self.head_size

    @property
    def query_width(self) -> int:
        return self.channels * self.heads

    @property
    def key_width(self) -> int:
        return self.channels * self.key_groups

    @property
    def norm_width(self) -> int:
        """Parameters of one norm, in units of hidden: a LayerNorm has a bias, an RMSNorm none."""
        return 1 if self.rms_norm else 2

    @property
    def expert_ffn(self) -> int:
        experts = self.experts
        return self.ffn_size if experts is None or experts.ffn is None else experts.ffn

    def rich_layers(self, first: int, count: int) -> int:
        """Return how many of the `count` layers from `first` on have experts."""
        if self.experts is None:
            return 0
        every = self.experts.every
        return -(-(first + count) // every) - -(-first // every)

    def padded_vocabulary(self, tensor: int) -> int:
        """The vocabulary rounded up to a multiple of 128 x TP, as in Megatron."""
        step = 128 * tensor
        return -(-self.vocabulary // step) * step


class Preset(NamedTuple):
    shape: ModelShape
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    global_batch: int | None = None  # None: 16 per GPU
    trainer: Literal["megatron", "llm-foundry"] = "megatron"
    source: str = ""


def _aks(layers: int, hidden: int, heads: int, sequence: int, tensor: int, pipeline: int) -> Preset:
    return Preset(ModelShape(layers, hidden, heads, sequence), tensor, pipeline, source=_AKS)


def _hyperpod(layers: int, hidden: int, heads: int, tensor: int, pipeline: int) -> Preset:
    return Preset(ModelShape(layers, hidden, heads, 2048), tensor, pipeline, source=_HYPERPOD)


def _box(layers: int, hidden: int, heads: int) -> Preset:
    return Preset(ModelShape(layers, hidden, heads, 1024), source=_BOX)


def _mpt(layers: int, hidden: int, heads: int, whole: int, micro: int) -> Preset:
    """An MPT model with biases and learned positions; vocabulary as in the YAML."""
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
    # TP and PP as in the table of the paper from which the document takes its shapes.
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


def find_preset(name: str) -> Preset | None:
    by_name = {each.lower(): preset for each, preset in PRESETS.items()}
    return by_name.get(name.strip().lower())
