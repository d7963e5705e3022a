# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exports a watched run: `/metrics` and `/healthz`, OTLP, notes for TensorBoard, notifications.

The loop takes a snapshot after each evaluation. Exporters read the newest one in their own threads
and never block the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mwatch.decide import history
from mwatch.detect.shared.probe import probed_ranks
from mwatch.detect.shared.stall import Patience, patience
from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import open_incidents
from mwatch.errors import InputError
from mwatch.export.http.server import Pages, Server, standard_pages
from mwatch.model.finding import Severity
from mwatch.model.incident import IncidentRecord, IncidentStage, is_later
from mwatch.model.phase import JobPhase
from mwatch.model.snapshot.snapshot import Inputs, OwnUsage, Snapshot, take
from mwatch.runtime.self_monitoring import OwnUse
from mwatch.state.goodput.ledger import time_spent
from mwatch.stats import MonotonicCounters
from mwatch.watch.collector import VolumeCollector

if TYPE_CHECKING:
    from mwatch.export.notify.notifier import Notifier
    from mwatch.export.otlp.exporter import Otlp
    from mwatch.export.tensorboard.notes import TensorboardNotes
    from mwatch.watch.incidents import TrackedIncident


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
        """`errors`: internal errors so far; `dropped`: what other exporters dropped."""
        self._dropped = dropped
        self._engine = engine
        self._live = live
        self._is_acting = is_acting
        self._errors = errors
        self._use = OwnUse(live.clock.now())
        self._newest: Snapshot | None = None
        self._ticked = time.monotonic()
        self._spent = MonotonicCounters()
        self.where: str | None = None
        self.problem: str | None = None

    def update(self, assessment: Assessment) -> None:
        engine, live, folder = self._engine, self._live, self._live.folder
        more = live.more
        limit = self._patience()
        spent = time_spent(engine.job, assessment.at)
        around = Inputs(
            goodput=spent.goodput,
            spent_seconds=spent.raised(self._spent),
            findings=assessment.findings,
            decision=assessment.decision,
            hang_deadline_seconds=None if limit is None else limit.seconds,
            incidents=engine.incidents_over,
            restarts_left=self._restarts_left(),
            gpus=live.gpus,
            sources=live.sources,
            is_acting=self._is_acting(),
            ranks=live.ranks,
            nccl=None if more is None else more.nccl,
            fabric=() if more is None else more.ports,
            storage=None if folder is None else folder.storage,
            checkpoint_sizes={} if folder is None else folder.sizes,
            tensorboard_iteration=None if more is None else more.tensorboard_iteration,
            own=self._own(),
            open_incidents=open_incidents(engine.incidents, assessment.findings),
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
        used = history.spent(engine.record, engine.job.now, engine.settings.act)
        return max(0, engine.settings.act.restarts_per_window - used)


@contextmanager
def serve(port: int | None, metrics: RunMetrics, more: Pages | None = None) -> Iterator[RunMetrics]:
    """Serve the metrics and the pages in `more` on `port`. If the port is taken, the problem is
    reported and the run goes on without them."""
    server = None
    if port is not None:
        try:
            pages = standard_pages(snapshots=metrics.snapshots, since_tick=metrics.since_tick)
            server = Server({**(more or {}), **pages}, port=port)
            metrics.where = f"http://127.0.0.1:{server.port}/metrics"
        except OSError as error:
            metrics.problem = (
                f"no metrics: cannot listen on port {port} ({error.strerror or error})"
            )
    try:
        yield metrics
    finally:
        if server is not None:
            server.close()


_CLOSE_SECONDS = 0.5
"""Time limit to close OTLP or the notes: a pod that ends must not wait for a collector."""


_NOTIFY_CLOSE_SECONDS = 3.0
"""Longer, because the last message says why the run ended."""


class NotifyTarget(NamedTuple):
    urls: Sequence[str]
    link: str
    """Where the recipient of a message finds the run: an address or a command."""
    is_act: bool


class RunNotices:
    """Sends one notification for each stage of an incident."""

    def __init__(self, target: NotifyTarget) -> None:
        """Raise InputError if a URL is invalid or the package is not installed."""
        from mwatch.export.notify.notifier import Notifier

        self._target = target
        self._stages: dict[str, IncidentStage] = {}
        self.notifier: Notifier = Notifier(target.urls)

    def update(self, tracked: Sequence[TrackedIncident]) -> None:
        from mwatch.export.notify.message import incident_message

        known, self._stages = self._stages, {}
        for record, incident in ((each.record, each.incident) for each in tracked):
            first = IncidentStage.OPENED if incident.is_recalled else None
            before, stage = known.get(record.id, first), incident.stage
            if is_later(stage, before):
                is_critical = incident.finding.severity is Severity.CRITICAL
                message = incident_message(
                    record, stage, link=self._target.link, is_act=self._target.is_act,
                    is_critical=is_critical,
                )  # fmt: skip
                self.notifier.send(message)
                before = stage
            if before is not None:
                self._stages[record.id] = before


class Exporters:
    """OTLP, notes for TensorBoard, and notifications.

    Their packages are imported only if used: they need as much memory as the rest of a sidecar.
    """

    def __init__(
        self,
        snapshots: Callable[[], Iterable[Snapshot]],
        *,
        otlp_endpoint: str | None = None,
        tensorboard_notes: Path | None = None,
        attributes: Mapping[str, str] | None = None,
        notify: NotifyTarget | None = None,
    ) -> None:
        """Raise InputError if an endpoint is not an address."""
        self._notices = None if notify is None else RunNotices(notify)
        self._snapshots = snapshots
        self._otlp: Otlp | None = None
        self._notes: TensorboardNotes | None = None
        self._noted: dict[str, IncidentRecord] = {}
        if otlp_endpoint is not None:
            from mwatch.export.otlp.exporter import Otlp

            try:
                self._otlp = Otlp(otlp_endpoint, snapshots, attributes=attributes)
            except ValueError as error:
                raise InputError(f"--otlp-endpoint: {error}") from None
            self._otlp.start()
        if tensorboard_notes is not None:
            from mwatch.export.tensorboard.notes import TensorboardNotes

            self._notes = TensorboardNotes(tensorboard_notes)

    def update(self, records: Sequence[IncidentRecord]) -> None:
        notes = self._notes
        if notes is None:
            return
        for snapshot in self._snapshots():
            notes.update(snapshot)
        for record in records:
            if self._noted.get(record.id) is not record:
                notes.incident(record)
        self._noted = {record.id: record for record in records}

    def notify(self, tracked: Sequence[TrackedIncident]) -> None:
        if self._notices is not None:
            self._notices.update(tracked)

    def problems(self) -> list[str]:
        """Problems for the user; may be returned again."""
        found = [] if self._notices is None else self._notices.notifier.problems()
        if self._otlp is not None and self._otlp.problem is not None:
            found.append(f"OTLP: {self._otlp.problem}")
        if self._notes is not None and self._notes.problem is not None:
            found.append(f"TensorBoard: {self._notes.problem}")
        return found

    def dropped(self) -> dict[str, int]:
        found = {}
        if self._otlp is not None:
            found["otlp"] = self._otlp.dropped
        if self._notes is not None:
            found["tensorboard_notes"] = self._notes.dropped
        if self._notices is not None:
            found["notify"] = self._notices.notifier.failed
        return found

    def close(self) -> None:
        if self._otlp is not None:
            self._otlp.close(_CLOSE_SECONDS)
        if self._notes is not None:
            self._notes.close(_CLOSE_SECONDS)
        if self._notices is not None:
            self._notices.notifier.close(_NOTIFY_CLOSE_SECONDS)
