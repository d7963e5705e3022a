# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Independent witnesses, with what they really say: not always the truth, not always anything.

- A process is stopped or dead; that it is alive says nothing.
- CPU time: a rank that waits in a collective usually spins, so it moves although it hangs.
- GPU activity is flat in a hang, and also while saving or loading.
- NCCL's RAS counts collectives: frozen in a hang, and in a save; one rank behind where it
  has not come. With no tensor parallelism they stand still for the whole of a long step.
- The flight recorder is asked once a stall has lasted; it names who has not come, be it for
  ever or just for now.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mwatch.model.observation import Observed, Sign, SignSource, SignState
from mwatch.model.phase import JobPhase
from sim.eyes import Eyes
from sim.stage import Posture, Stage

_PERIOD = 5.0
_RAS_PERIOD = 30.0
_ASKED_AFTER = 20.0
_UNSURE = 0.03
_DEAD_AFTER = 60.0
_LONG_STEP = 30.0


class Witnesses:
    def __init__(self, stage: Stage, eyes: Eyes, ranks: list[int], chance: Random) -> None:
        self._stage = stage
        self._eyes = eyes
        self._ranks = ranks
        self._chance = chance
        self._next = self._next_ras = stage.now
        self._still_since: float | None = None
        self._recorded = False
        self._seen_iteration: int | None = None
        self._was_stopped: set[int] = set()
        self._was_held = False
        self._burnt: set[int] = set()
        """Ranks whose CPU worked since the last report: its time is a counter, not a sample."""

    def read(self, names: list[str]) -> Iterator[Observed]:
        stage = self._stage
        if not stage.attempt:
            return
        self._watch_stillness()
        if self._eyes.cpu:
            self._burnt |= {rank for rank in self._ranks if stage.posture(rank).burns_cpu}
        if stage.now >= self._next:
            self._next = stage.now + _PERIOD
            yield from self._local(names)
        if self._eyes.ras and stage.now >= self._next_ras:
            self._next_ras = stage.now + _RAS_PERIOD
            yield self._say(names, 0, self._ras())
        if self._eyes.recorder and self._should_record():
            self._recorded = True
            yield self._say(names, 0, self._dump())

    def _watch_stillness(self) -> None:
        is_still = not self._stage.crowd.moves and not self._stage.is_over
        if not is_still:
            self._still_since, self._recorded = None, False
        elif self._still_since is None:
            self._still_since = self._stage.now

    def _should_record(self) -> bool:
        since = self._still_since
        asked = since is not None and self._stage.now - since >= _ASKED_AFTER
        return asked and not self._recorded and self._stage.crowd.collective != "none"

    def _say(self, names: list[str], pod: int, sign: Sign) -> Observed:
        return Observed(self._stage.now + self._eyes.skew(pod), names[pod], sign)

    def _local(self, names: list[str]) -> Iterator[Observed]:
        stage, eyes = self._stage, self._eyes
        if eyes.process:
            yield from self._held(names)
        for rank in self._ranks:
            pod = stage.shape.pod_of(rank)
            if pod in stage.lost_pods:
                continue
            posture = stage.posture(rank)
            for sign in self._signs(rank, posture):
                if self._chance.random() < _UNSURE:
                    sign = sign._replace(state=SignState.UNKNOWN, text="no answer")
                yield Observed(stage.now + eyes.skew(pod), names[pod], sign)
        self._burnt.clear()

    def _held(self, names: list[str]) -> Iterator[Observed]:
        """A person has stopped every process of every pod; once they go on, that is said too."""
        is_held = self._stage.crowd.is_stopped and not self._stage.odd
        if is_held or self._was_held:
            state = SignState.SUSPENDED if is_held else SignState.UNKNOWN
            sign = Sign(SignSource.PROCESS, state, None, f"the command is {state}")
            yield from (self._say(names, pod, sign) for pod in range(self._stage.shape.pods))
        self._was_held = is_held

    def _signs(self, rank: int, posture: Posture) -> Iterator[Sign]:
        eyes = self._eyes
        if eyes.process and not posture.is_alive:
            yield Sign(SignSource.PROCESS, SignState.DEAD, rank, f"rank {rank} is gone")
        elif eyes.process and posture.is_traced:
            self._was_stopped.add(rank)
            yield Sign(SignSource.PROCESS, SignState.TRACED, rank, "a debugger has stopped it")
        elif eyes.process and posture.is_stopped and not self._was_held:
            self._was_stopped.add(rank)
            yield Sign(SignSource.PROCESS, SignState.STOPPED, rank, f"rank {rank} is in state T")
        elif rank in self._was_stopped:
            self._was_stopped.discard(rank)
            yield Sign(SignSource.PROCESS, SignState.UNKNOWN, rank, f"rank {rank} is alive")
        if self._stage.is_over:
            return
        if eyes.cpu:
            state = SignState.MOVING if rank in self._burnt else SignState.FLAT
            yield Sign(SignSource.CPU_TIME, state, rank, f"CPU time of rank {rank} is {state}")
        if eyes.gpu:
            state = SignState.MOVING if posture.uses_gpu else SignState.FLAT
            yield Sign(SignSource.GPU_ACTIVITY, state, rank, f"power of rank {rank} is {state}")

    def _ras(self) -> Sign:
        stage = self._stage
        source = SignSource.NCCL_RAS
        if stage.is_over or stage.phase in (JobPhase.STARTING, JobPhase.LOADING):
            return Sign(source, SignState.UNKNOWN, None, "no communicators")
        if self._chance.random() < _UNSURE:
            return Sign(source, SignState.UNKNOWN, None, "the query timed out")
        waited = stage.now - (self._still_since if self._still_since is not None else stage.now)
        moved, self._seen_iteration = self._seen_iteration != stage.iteration, stage.iteration
        if stage.crowd.moves and stage.crowd.collective != "none":
            if not moved and stage.shape.tensor == 1 and stage.shape.step_seconds > _LONG_STEP:
                return Sign(source, SignState.ALL_EQUAL, None, "counts are frozen and equal")
            return Sign(source, SignState.MOVING, None, "counts rise")
        if not stage.crowd.moves and waited < _RAS_PERIOD:
            return Sign(source, SignState.MOVING, None, "counts rose since the last query")
        return self._where_it_waits(source, waited)

    def _where_it_waits(self, source: SignSource, waited: float) -> Sign:
        for rank, posture in sorted(self._stage.odd.items()):
            if not posture.is_alive and waited >= _DEAD_AFTER:
                return Sign(source, SignState.DEAD, rank, f"rank {rank} is considered dead")
            if posture.collective == "other":
                return Sign(source, SignState.OUT_OF_STEP, rank, f"rank {rank} runs another")
            if posture.collective == "absent":
                return Sign(source, SignState.BEHIND, rank, f"rank {rank} is one count behind")
        return Sign(source, SignState.ALL_EQUAL, None, "counts are frozen and equal")

    def _dump(self) -> Sign:
        source = SignSource.FLIGHT_RECORDER
        for rank, posture in sorted(self._stage.odd.items()):
            if posture.collective == "other":
                return Sign(source, SignState.OUT_OF_STEP, rank, f"rank {rank} runs another")
            if posture.collective == "absent":
                return Sign(source, SignState.NEVER_JOINED, rank, f"rank {rank} has not come")
        return Sign(source, SignState.ALL_EQUAL, None, "all ranks are in the same collective")
