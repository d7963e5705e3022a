# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes in the golden table besides the presets: gated layers, narrow keys, experts."""

from __future__ import annotations

from dataclasses import replace

from mwatch.plan.presets import PRESETS, Preset
from mwatch.plan.shape import Experts, Shape

_LLAMA = Shape(
    32, 4096, 32, 8192, 128256, ffn=14336, groups=8, gated=True, bias=False,
    learned_positions=False, rms_norm=True, tied=False,
)  # fmt: skip
EXTRA = {
    "llama": Preset(_LLAMA, 2, 2),
    "mixture": Preset(replace(_LLAMA, experts=Experts(8, 2, ffn=14336)), 2, 4),
    "shared": Preset(replace(_LLAMA, experts=Experts(16, 4, 2048, 4096, every=2)), 1, 4),
}
ALL = {**PRESETS, **EXTRA}
