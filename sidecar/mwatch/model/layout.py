# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shape and schedule of a job, as its argument block or its probe says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """None: not said yet."""

    world_size: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    log_interval: int | None = None
    save_interval: int | None = None
    eval_interval: int | None = None
    exit_interval: int | None = None
    total_iterations: int | None = None
    precision: str | None = None
    is_dynamic_scale: bool | None = None
    async_save: bool | None = None
    save_folder: str | None = None
    load_folder: str | None = None
    sequence_length: int | None = None

    @property
    def key(self) -> str:
        """What calibration is kept under: times learnt in one shape say nothing of another."""
        parts = (self.world_size, self.tensor, self.pipeline, self.context, self.expert)
        return "world={} tp={} pp={} cp={} ep={}".format(*("?" if p is None else p for p in parts))

    def coordinates(self, rank: int | None) -> dict[str, int]:
        """Megatron's default order tp-cp-ep-dp-pp; empty where rank or shape are not known."""
        if rank is None or not self.world_size or not 0 <= rank < self.world_size:
            return {}
        tensor, context = self.tensor or 1, self.context or 1
        stage_size = self.world_size // (self.pipeline or 1)
        if not stage_size or stage_size % (tensor * context):
            return {}
        stage, within = divmod(rank, stage_size)
        data, place = divmod(within, tensor * context)
        found = {"tp": place % tensor, "pp": stage, "dp": data}
        return found | {"cp": place // tensor} if context > 1 else found
