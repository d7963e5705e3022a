# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/metrics` and `/healthz` of a run that this process watches.

The loop leaves a snapshot at each look; a scrape reads the newest one in a thread of its own and
never waits for the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from mwatch.decide import budget
from mwatch.detect.shared.probe import probed_ranks
from mwatch.detect.shared.stall import Patience, patience
from mwatch.engine.engine import Assessment, Engine
from mwatch.export.http.server import Server, standard_pages
from mwatch.model.goodput import RisingSeconds
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot.snapshot import Inputs, OwnUsage, Snapshot, take
from mwatch.runtime.self_monitoring import OwnUse
from mwatch.state.goodput.ledger import time_spent
from mwatch.watch.collector import VolumeCollector


class RunMetrics:
    def __init__(
        self,
        engine: Engine,
        live: VolumeCollector,
        *,
        is_acting: Callable[[], bool | None] = lambda: None,
        errors: Callable[[], int] = lambda: 0,
        dropped: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`errors`: faults of our own so far; `dropped`: what was lost on other ways out."""
        self._dropped = dropped
        self._engine = engine
        self._live = live
        self._is_acting = is_acting
        self._errors = errors
        self._use = OwnUse(live.clock.now())
        self._newest: Snapshot | None = None
        self._ticked = time.monotonic()
        self._spent = RisingSeconds()
        self.where: str | None = None
        """The address; None: nobody asked for one, or none could be had."""
        self.problem: str | None = None

    def looked(self, assessment: Assessment) -> None:
        engine, live, folder = self._engine, self._live, self._live.folder
        limit = self._patience()
        spent = time_spent(engine.job, assessment.at)
        around = Inputs(
            goodput=spent.goodput,
            spent_seconds=self._spent.raise_to(spent.seconds),
            findings=assessment.findings,
            decision=assessment.decision,
            hang_deadline_seconds=None if limit is None else limit.seconds,
            incidents=engine.incidents_over,
            restarts_left=self._restarts_left(),
            gpus=live.gpus,
            sources=live.sources,
            is_acting=self._is_acting(),
            ranks=live.ranks,
            nccl=live.more.nccl,
            fabric=live.more.ports,
            storage=None if folder is None else folder.storage,
            checkpoint_sizes={} if folder is None else folder.sizes,
            tensorboard_iteration=live.more.tensorboard_iteration,
            own=self._own(),
        )
        self._newest = take(engine.job, around, at=assessment.at)
        self._ticked = time.monotonic()

    def snapshots(self) -> list[Snapshot]:
        return [] if self._newest is None else [self._newest]

    def since_tick(self) -> float:
        return time.monotonic() - self._ticked

    def _own(self) -> OwnUsage:
        use, live = self._use, self._live
        return OwnUsage(
            started_at=use.started_at,
            cpu_seconds=use.cpu_seconds(),
            resident_bytes=use.resident_bytes(),
            log_lines=live.log.lines,
            log_bytes=live.log.bytes,
            dropped={**live.dropped, **self._dropped()},
            errors=self._errors(),
        )

    def _patience(self) -> Patience | None:
        job, settings = self._engine.job, self._engine.settings
        if job.attempt.phase in (JobPhase.ENDED, JobPhase.QUEUED, JobPhase.SCHEDULING):
            return None
        return patience(job, probed_ranks(job, settings), settings)

    def _restarts_left(self) -> int:
        engine = self._engine
        used = budget.spent(engine.record, engine.job.now, engine.settings.act)
        return max(0, engine.settings.act.restarts_per_window - used)


@contextmanager
def serve(port: int | None, metrics: RunMetrics) -> Iterator[RunMetrics]:
    """A port that cannot be had is said, and no reason not to train."""
    server = None
    if port is not None:
        try:
            pages = standard_pages(snapshots=metrics.snapshots, since_tick=metrics.since_tick)
            server = Server(pages, port=port)
            metrics.where = f"http://127.0.0.1:{server.port}/metrics"
        except OSError as error:
            metrics.problem = f"no metrics: port {port} cannot be had ({error.strerror or error})"
    try:
        yield metrics
    finally:
        if server is not None:
            server.close()
