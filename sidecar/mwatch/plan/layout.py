# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How a model is laid out over the GPUs: parallel sizes, batches, and memory-saving switches.

DP = world / (TP x PP x CP). EP divides DP, so it is not a factor of the world size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    """Recompute attention scores; no effect with flash attention, which never stores them."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    world: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    virtual: int | None = None
    """Chunks of layers per stage in the interleaved schedule; None: the plain schedule."""
    micro_batch: int = 1
    global_batch: int = 1
    recompute: Recompute = Recompute.SELECTIVE
    sequence_parallel: bool = True
    distributed_optimizer: bool = True
    flash_attention: bool = True
    fully_sharded: bool = False
    """FSDP, as used by LLM-Foundry: all states are sharded over all GPUs, without TP and PP."""
    first_layers: int | None = None  # in the first pipeline stage; None: as in the others
    last_layers: int | None = None

    @property
    def model(self) -> int:
        """GPUs that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        return max(self.world // self.model, 1)

    @property
    def expert_data(self) -> int:
        """Copies of each expert; TP splits experts as it splits dense layers."""
        return max(self.world // (self.tensor * self.expert * self.pipeline), 1)

    @property
    def microbatches(self) -> int:
        """Gradient accumulation: forward passes of a data-parallel rank in one step."""
        return max(self.global_batch // (self.micro_batch * self.data), 1)

    @property
    def splits_sequence(self) -> bool:
        """Megatron turns sequence parallelism off without tensor parallelism."""
        return self.sequence_parallel and self.tensor > 1

    @property
    def is_uneven(self) -> bool:
        return self.first_layers is not None or self.last_layers is not None

    @property
    def text(self) -> str:
        if self.fully_sharded:
            return f"FSDP {self.world}"
        parts = [f"TP {self.tensor}", f"PP {self.pipeline}"]
        parts += [f"CP {self.context}"] if self.context > 1 else []
        parts += [f"EP {self.expert}"] if self.expert > 1 else []
        parts += [f"VPP {self.virtual}"] if self.virtual else []
        return " ".join([*parts, f"DP {self.data}"])

    @property
    def described(self) -> str:
        """The sizes, with recomputation and the switches that are off."""
        switches = (
            ("sequence parallelism", self.splits_sequence or self.tensor == 1),
            ("distributed optimizer", self.distributed_optimizer or self.fully_sharded),
            ("flash attention", self.flash_attention),
        )
        off = "".join(f", no {name}" for name, is_on in switches if not is_on)
        ends = (("first", self.first_layers), ("last", self.last_layers))
        own = "".join(f", {name} stage {count} layers" for name, count in ends if count)
        return f"{self.text}{own}, recompute {self.recompute.value}{off}"
