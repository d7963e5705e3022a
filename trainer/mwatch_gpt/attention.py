# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Attention by PyTorch's own kernel, for a layer of Megatron's without a GPU.

Megatron's stock core attention allocates a CUDA buffer as soon as tensor parallelism is on. This
one computes the same thing: causal, over the heads that this rank holds.
"""

from __future__ import annotations

from typing import Any

import torch


class CausalAttention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, config: Any, attention_dropout: float | None = None, **_: Any) -> None:
        super().__init__()
        given = attention_dropout
        self.dropout: float = config.attention_dropout if given is None else given

    def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        """Takes and gives [sequence, batch, heads, channels], as Megatron lays it out."""
        heads_first = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            *heads_first, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return mixed.permute(2, 0, 1, 3).flatten(2)
