# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The shape of a transformer, as Megatron-LM's arguments give it."""

from __future__ import annotations

from dataclasses import dataclass

GPT2_VOCABULARY = 50257


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts; which layers have them is `every`: 1 all, 2 every second one."""

    count: int
    top_k: int = 2
    ffn: int | None = None
    """None: as wide as the dense one."""
    shared_ffn: int = 0
    every: int = 1


@dataclass(frozen=True, slots=True)
class ModelShape:
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int = GPT2_VOCABULARY
    max_positions: int | None = None
    """None: as long as the sequence."""
    ffn: int | None = None
    """None: four times hidden."""
    groups: int | None = None
    """Of keys and values; None: one for each head."""
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
        """Of one head."""
        return self.hidden // self.heads if self.head_size is None else self.head_size

    @property
    def query_width(self) -> int:
        return self.channels * self.heads

    @property
    def key_width(self) -> int:
        return self.channels * self.key_groups

    @property
    def norm_width(self) -> int:
        """Parameters of one norm, in units of hidden: a LayerNorm has a bias."""
        return 1 if self.rms_norm else 2

    @property
    def expert_ffn(self) -> int:
        experts = self.experts
        return self.ffn_size if experts is None or experts.ffn is None else experts.ffn

    def rich_layers(self, first: int, count: int) -> int:
        """How many of the layers from `first` on have experts."""
        if self.experts is None:
            return 0
        every = self.experts.every
        return -(-(first + count) // every) - -(-first // every)

    def padded_vocabulary(self, tensor: int, multiple: int = 128) -> int:
        """Megatron rounds it up to a multiple of 128 x TP."""
        step = multiple * tensor
        return -(-self.vocabulary // step) * step
