# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Optional sources besides the volume: NCCL's RAS service, RDMA cards, TensorBoard files.

Each has its own period and time limit and never blocks. One that is not there is Absent, which is
not a fault.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mwatch.engine.engine import Engine
from mwatch.model.finding import Cause
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot.pod import FabricPort, Nccl
from mwatch.parse.ras import read_answer
from mwatch.sources.background import Read
from mwatch.sources.nccl_client import address_of
from mwatch.sources.nccl_ras import NcclRas
from mwatch.sources.rdma import Rdma
from mwatch.sources.tensorboard import TensorboardEvents

_NOT_SETTLED = frozenset({JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP})


class SourceSpec(NamedTuple):
    name: str
    read: Read
    kind: Source | None


class PodSources:
    def __init__(
        self,
        stream: str,
        engine: Engine,
        *,
        node: str | None = None,
        tensorboard: Path | None = None,
        sys_root: str = "/sys",
        ras_address: tuple[str, int] | None = None,
    ) -> None:
        """`ras_address`: by default from NCCL_RAS_ADDR; containers of a pod share their network."""
        self._engine = engine
        self.ras = NcclRas(
            address_of(os.environ) if ras_address is None else ras_address, stream, read_answer,
            world_size=lambda: engine.job.layout.world_size,
            is_settled=self._is_settled, is_silent=self._is_silent, is_asker=self._is_asker,
        )  # fmt: skip
        self._rdma = Rdma(sys_root, stream, engine.job.catalogue, node=node)
        self._events = None
        if tensorboard is not None:
            self._events = TensorboardEvents(
                str(tensorboard), stream, has_log=lambda: engine.job.sees(Source.LOG)
            )

    def sources(self) -> Iterator[SourceSpec]:
        yield SourceSpec("nccl", self.ras.read, Source.NCCL)
        yield SourceSpec("fabric", self._rdma.read, Source.FABRIC)
        if self._events is not None:
            yield SourceSpec("tensorboard", self._events.read, None)

    @property
    def nccl(self) -> Nccl | None:
        return self.ras.nccl

    @property
    def ports(self) -> tuple[FabricPort, ...]:
        return self._rdma.ports

    @property
    def tensorboard_iteration(self) -> int | None:
        return None if self._events is None else self._events.iteration

    def _is_settled(self) -> bool:
        """The job is past its first steps, when communicators are created."""
        attempt = self._engine.job.attempt
        has_moved = attempt.iteration is not None and attempt.phase not in _NOT_SETTLED
        return has_moved and attempt.ended_at is None

    def _is_asker(self) -> bool:
        """One answer covers the whole job: only the pod of rank 0 polls."""
        return 0 in self._engine.job.attempt.ranks

    def _is_silent(self) -> bool:
        """Progress is overdue; called from the polling thread."""
        known = list(self._engine.incidents)
        attempt = self._engine.job.attempt.number
        return any(
            symptom.closed_at is None and symptom.finding.cause is Cause.HANG
            for each in known
            if each.attempt == attempt
            for symptom in each.symptoms
        )
