# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the watchers of a run can see at all, and how well: it differs from site to site."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from sim.shape import Shape

_PROFILES = (
    # weight, probe, process, cpu, gpu, ras, recorder, folder, exits
    (40, (True, True, True, True, True, True, True, True)),
    (12, (True, True, False, False, False, False, True, True)),
    (12, (True, False, False, True, False, False, False, True)),
    (12, (False, True, True, True, False, False, True, True)),
    (8, (False, False, False, False, True, False, True, True)),
    (16, (False, False, False, False, False, False, False, False)),
)
MOST_PROBES = 32
"""In a large job only some pods are polled every second."""


@dataclass(frozen=True, slots=True)
class Eyes:
    probe: bool = True
    process: bool = True
    cpu: bool = True
    gpu: bool = True
    ras: bool = True
    recorder: bool = True
    folder: bool = True
    exits: bool = True
    """Somebody sees the end of a pod's command: the wrapper, or Kubernetes."""
    skews: tuple[float, ...] = ()
    """By pod: how far its clock is ahead."""
    delays: tuple[float, ...] = ()
    """By pod: how late its lines arrive."""
    lost_share: float = 0.0
    """Of iteration lines that never arrive."""
    missed_share: float = 0.0
    """Of probe records that are missed."""
    gap: tuple[int, float, float] | None = None
    """A pod whose lines are held back: the pod, from when (seconds after the start), how long."""

    def skew(self, pod: int) -> float:
        return self.skews[pod] if self.skews else 0.0

    def delay(self, pod: int) -> float:
        return self.delays[pod] if self.delays else 0.0

    @property
    def has_witness(self) -> bool:
        """Anything besides progress itself that can speak for a hang."""
        return self.process or self.cpu or self.gpu or self.ras or self.recorder

    @property
    def is_log_only(self) -> bool:
        return not self.probe and not self.has_witness


def draw_eyes(chance: Random, shape: Shape, *, blurs: bool = True) -> Eyes:
    weights = [weight for weight, _ in _PROFILES]
    (flags,) = chance.choices([flags for _, flags in _PROFILES], weights)
    pods = range(shape.pods)
    # A controller takes each sidecar's clock against its own; where it cannot, seconds remain.
    skew = chance.choice((0.0, 0.0, 0.0, 0.3, 0.3, 3.0)) if blurs else 0.0
    late = blurs and chance.random() < 0.3
    return Eyes(
        *flags,
        skews=tuple(chance.uniform(-skew, skew) for _ in pods),
        delays=tuple(chance.uniform(0.0, 2.0) if late else 0.05 for _ in pods),
        lost_share=0.01 if blurs and chance.random() < 0.1 else 0.0,
        missed_share=chance.choice((0.0, 0.002, 0.02)) if blurs else 0.0,
    )


def probed_ranks(shape: Shape, wanted: set[int]) -> list[int]:
    """All ranks of a small job; of a large one rank 0, the last, `wanted`, and a spread."""
    world = shape.world_size
    if world <= MOST_PROBES:
        return list(range(world))
    spread = set(range(0, world, world // (MOST_PROBES // 2)))
    return sorted(spread | {0, world - 1} | {rank for rank in wanted if rank < world})
