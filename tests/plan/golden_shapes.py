# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes in the golden table besides the presets, each with one feature that GPT-3 does not
have."""

from __future__ import annotations

from dataclasses import replace

from mwatch.plan.shape import PRESETS, Experts, ModelShape, Preset

_LLAMA = ModelShape(
    32, 4096, 32, 8192, 128256, ffn=14336, groups=8, gated=True, bias=False,
    learned_positions=False, rms_norm=True, tied=False,
)  # fmt: skip
_GPT = PRESETS["13b"].shape
EXTRA = {
    "narrow keys": Preset(replace(_GPT, groups=8), 2, 4),
    "gated": Preset(replace(_GPT, gated=True, ffn=13824), 2, 4),
    "untied": Preset(replace(_GPT, tied=False), 2, 2),
    "wide heads": Preset(replace(_GPT, head_size=256), 2, 4),
    "RMSNorm": Preset(replace(_GPT, rms_norm=True), 2, 4),
    "experts": Preset(replace(_GPT, layers=8, experts=Experts(8, 2)), 2, 2),
    "llama": Preset(_LLAMA, 2, 2),
    "mixture": Preset(replace(_LLAMA, experts=Experts(8, 2, ffn=14336)), 2, 4),
    "shared": Preset(replace(_LLAMA, experts=Experts(16, 4, 2048, 4096, every=2)), 1, 4),
}
ALL = {**PRESETS, **EXTRA}
