# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Probe records: once a second, from each rank whose process can still run a thread."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mwatch.model.observation import Beat, Observed
from mwatch.model.phase import JobPhase
from sim import wreckage
from sim.eyes import Eyes
from sim.stage import Posture, Stage

_PLACES = ("compute", "compute", "collective", "compute", "data", "compute", "collective")
_BEFORE = (JobPhase.STARTING, JobPhase.LOADING)


class Probe:
    def __init__(self, stage: Stage, eyes: Eyes, ranks: list[int], chance: Random) -> None:
        self._stage = stage
        self._eyes = eyes
        self._ranks = ranks
        self._chance = chance
        self._count = 0

    def read(self, names: list[str], token: int | None, seconds: float) -> Iterator[Observed]:
        """The newest record of these seconds, of each rank; `names`: of the streams, by pod."""
        stage, eyes = self._stage, self._eyes
        self._count += 1
        if stage.is_over or not stage.attempt:
            return
        world, now = stage.shape.world_size, stage.now
        is_known = stage.phase not in _BEFORE and not stage.shape.flavour
        iteration = stage.iteration if is_known else None
        missed = eyes.missed_share ** max(1, round(seconds))  # all of them, one a second
        for rank in self._ranks:
            pod = rank // stage.shape.pod_ranks
            posture = stage.odd.get(rank, stage.crowd) if stage.odd else stage.crowd
            if not posture.writes or pod in stage.lost_pods:
                continue
            if eyes.missed_share and self._chance.random() < missed:
                continue
            place, stack = self._place(posture, rank)
            beat = Beat(rank, world, iteration, place, stack, wreckage.pid(rank), token)
            yield Observed(now + eyes.skew(pod), names[pod], beat)

    def _place(self, posture: Posture, rank: int) -> tuple[str, str]:
        place = "unknown" if self._stage.shape.flavour else posture.place
        if not posture.moves:
            return place, f"{place}-still-{rank % 2}"
        turn = self._count + rank * 3
        if place == "training":
            place = _PLACES[turn % 7]
            return place, f"{place}-{turn % 3}"
        return place, f"{place}-{turn // 4 % 3}"
