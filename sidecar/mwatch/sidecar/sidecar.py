# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch sidecar`: watches one training pod from the container beside it, for months.

One loop, once a second: read what is new, evaluate, export. It does not affect the training, and
survives any failure of the volume, the wrapper, the clock, the disk or itself; only a signal ends
it. Sources that cannot be read are reported in its output, `mwatch_source_up` and `mwatch_blind`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mwatch import __version__
from mwatch.config import catalogue
from mwatch.config.loader import load_policy
from mwatch.config.sidecar import SidecarSettings
from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import Incident
from mwatch.evidence.collector import OffPod
from mwatch.evidence.incident_store import AsyncIncidentStore
from mwatch.export.http.control import control_pages
from mwatch.export.http.server import Pages, standard_pages
from mwatch.model.event import Arguments
from mwatch.model.observation import Observed
from mwatch.model.settings import Settings
from mwatch.model.snapshot.pod import PodFacts, PodId
from mwatch.runtime.clock import Clock
from mwatch.runtime.self_monitoring import InternalErrors
from mwatch.runtime.shutdown import asked_to_end
from mwatch.sidecar.event_buffer import CursorFile, LogPlace
from mwatch.sidecar.server import (
    Evaluated,
    EvidenceApi,
    SidecarServer,
    SnapshotPage,
    restart_with_evidence,
)
from mwatch.sources.background import MonitoredSource
from mwatch.sources.pod_facts import PodFactsSource, data_prefixes, printed_prefixes
from mwatch.watch.collector import PodSources, VolumeCollector
from mwatch.watch.incidents import EvidenceExtras
from mwatch.watch.metrics import Exporters, RunMetrics
from mwatch.watch.page import LivePage
from mwatch.watch.watcher import RunObserver, RunRecorder, RunWatcher, SafeObserver
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask

if TYPE_CHECKING:
    from mwatch.report.model import EvidenceFile
    from mwatch.report.recorder import ReportRecorder


class PodWatch:
    """Checks the data files and folders that the current attempt uses."""

    def __init__(self, live: VolumeCollector) -> None:
        self._live = live
        self._source: PodFactsSource | None = None
        self._about: tuple[Sequence[str], Path | None] = ((), None)
        self._printed: Sequence[str] = ()

    def observe(self, observed: Observed) -> None:
        if isinstance(observed.what, Arguments):
            self._printed = printed_prefixes(observed.what.extra)

    def facts(self) -> PodFacts | None:
        """Return the last check, which may be minutes old; never waits."""
        wrapper, save = self._live.wrapper, self._live.save
        given = data_prefixes(() if wrapper is None else wrapper.argv)
        about = (given or self._printed, save)
        if self._source is None or about != self._about:
            self._about = about
            folder = None if save is None else str(save)
            self._source = PodFactsSource(about[0], folder, self._tracker)
        return self._source.facts

    def _tracker(self) -> str | None:
        return None if self._live.folder is None else self._live.folder.tracker


class SidecarRecord(RunRecorder):
    """Keeps a report for the page only; the controller, which reads all pods, writes reports."""

    def __init__(
        self, engine: Engine, observe: Callable[[Observed], None], page: LivePage | None = None
    ) -> None:
        """`observe` is called with everything that the engine observes."""
        super().__init__(engine)
        self._observe = observe
        self._page = page
        self._kept: ReportRecorder | None = None

    def observe(self, observed: Observed) -> None:
        self._observe(observed)
        if self._page is not None:
            self._recorder.note(observed)

    def looked(self, assessment: Assessment) -> None:
        if self._kept is not None:
            self._kept.assessed(assessment)
        if self._page is not None:
            self._page.update(lambda: self._recorder.report(assessment.at))

    def incident(self, incident: Incident, files: Sequence[EvidenceFile]) -> None:
        if self._page is not None:
            self._recorder.incident(incident, files)

    def noted(self, text: str) -> None:
        if self._page is not None:
            self._recorder.noted(text)

    @property
    def _recorder(self) -> ReportRecorder:
        """Created when there is something to record, because the import is slow."""
        if self._kept is None:
            from mwatch.report.recorder import ReportRecorder

            self._kept = ReportRecorder(self._engine)
        return self._kept


_LASTING_SECONDS = 3.0


class SourceChanges:
    """Reports each source that is found or lost, once per change.

    A source that never existed is not lost, and neither is one that is missing only for a moment:
    a file may be replaced while it is read.
    """

    def __init__(self) -> None:
        self._reported: dict[str, bool] = {}
        self._since: dict[str, float] = {}

    def messages(self, sources: Iterable[MonitoredSource], now: float) -> Iterator[str]:
        for each in sources:
            name, is_up = each.name, each.is_up
            if is_up is self._reported.get(name, False):
                self._since.pop(name, None)
                continue
            since = self._since.setdefault(name, now)
            if not is_up and now - since < _LASTING_SECONDS:
                continue
            self._reported[name] = is_up
            del self._since[name]
            yield f"source {name}: {'found' if is_up else f'lost: {each.reason}'}"


TICK_SECONDS = 1.0
MAX_INCIDENTS = 16
MAX_BYTES = 128 << 20
"""Limit for all evidence on the volume: a full volume would kill the trainer."""
LAST_SECONDS = 15.0
"""Stay this long after the last attempt: for a scrape or three polls of a controller."""
_AGAIN_SECONDS = 330.0
"""Stay this long if the container may restart: Kubernetes waits up to 300 s before that."""
_UNKNOWN_END_SECONDS = 1800.0
"""Stay this long if it is unknown whether the command still runs: a pod without its sidecar is not
ready, and its ranks may not find each other."""
_DRAIN_SECONDS = 0.3
_PAGE_SHARE = 0.001
"""Share of a core for the charts of an open page, and the same for the rest of it."""


class _Places:
    def __init__(self, settings: SidecarSettings) -> None:
        self.volume = self.path = settings.dir
        self.incidents = settings.evidence or settings.dir / "incidents"


def run(settings: SidecarSettings, view: RunObserver) -> int:
    """Run until a signal; raise InputError if settings are invalid."""
    thresholds = load_policy(settings.policy)
    with asked_to_end() as asked, ExitStack() as stack:
        sidecar = Sidecar(settings, thresholds, SafeObserver(view))
        stack.callback(sidecar.close)
        sidecar.turn()
        sidecar.listen()
        while not asked.is_set() and not sidecar.is_over():
            began = time.monotonic()
            sidecar.turn()
            asked.wait(max(0.0, TICK_SECONDS - (time.monotonic() - began)))
    return 0


class Sidecar:
    def __init__(self, settings: SidecarSettings, thresholds: Settings, view: RunObserver) -> None:
        self._settings = settings
        self._view = view
        self.faults = InternalErrors(view.noted)
        self._pages: SidecarServer | None = None
        self._final_at: float | None = None
        known, grammar = catalogue.with_grammar()
        clock = Clock()
        self.engine = Engine(settings.run, known, thresholds)
        more = PodSources(
            settings.pod, self.engine, node=settings.node, tensorboard=settings.tensorboard
        )
        self.live = VolumeCollector(
            settings.dir, settings.pod, grammar, known, clock, settings.save,
            node=settings.node, more=more,
        )  # fmt: skip
        self.metrics = RunMetrics(
            self.engine, self.live, is_acting=self._is_acting, errors=self._errors,
            dropped=lambda: self.out.dropped(),
        )  # fmt: skip
        self.out = Exporters(
            self.metrics.snapshots,
            otlp_endpoint=settings.otlp_endpoint,
            tensorboard_notes=settings.tensorboard_notes,
            attributes=_attributes(settings),
        )
        self._live_page = None if settings.no_page else self._make_page()
        self._pod = PodWatch(self.live)
        self._cursor = CursorFile(settings.dir)
        began = self._cursor.began
        who = _who(settings, clock.now())
        place = LogPlace(began.file, began.line)
        self.page = SnapshotPage(who, began.life, newest=began.newest, place=place)
        self._places = _Places(settings)
        self._files = AsyncIncidentStore(
            self._places.incidents, max_incidents=MAX_INCIDENTS, max_bytes=MAX_BYTES
        )
        self.watch = self._watch()
        self._changes = SourceChanges()

    def listen(self) -> None:
        settings = self._settings
        self._pages = SidecarServer(settings, self._made_pages(), self.live.clock.now())
        self._view.noted(
            f"mwatch sidecar {__version__}: run {settings.run}, pod {settings.pod}, "
            f"watching {settings.dir}, {self._pages.where}/metrics"
        )

    def turn(self) -> None:
        """Run the loop once; errors are reported and do not end it."""
        with self.faults.guard():
            self.watch.look()
            self._cursor.keep(self.page.ring.newest, self.live.log.file)
            self._leave_snapshot()
        with self.faults.guard():
            for text in self._changes.messages(self.live.monitored, self.live.clock.now()):
                self._view.noted(text)
        with self.faults.guard():
            problem = None if self._pages is None else self._pages.keep_file()
            if problem is not None:
                self._view.noted(problem)

    def is_over(self) -> bool:
        """Return whether the last attempt of this pod ended, and clients had time to read that."""
        lasts = self._last_seconds() if self._settings.until_final else None
        if lasts is None:
            self._final_at = None
            return False
        if self._final_at is None:
            self._final_at = time.monotonic()
            self._view.noted(f"the last attempt of this pod has ended: ends in {lasts:.0f} s")
        return time.monotonic() - self._final_at >= lasts

    def _last_seconds(self) -> float | None:
        """Return how long to stay after the end; None if an attempt runs or may follow."""
        wrapper, unwatched = self.live.wrapper, self.live.unwatched
        if unwatched is None:
            return LAST_SECONDS if wrapper is not None and wrapper.is_final else None
        if unwatched.is_running is None:
            return _UNKNOWN_END_SECONDS
        if unwatched.is_running:
            return None
        return LAST_SECONDS if unwatched.restart_policy == "Never" else _AGAIN_SECONDS

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        with self.faults.guard():
            self.watch.end(is_hurried=True)
            self._files.drain(_DRAIN_SECONDS)
        with self.faults.guard():
            self.out.close()
        if self._pages is not None:
            self._view.noted("ended")

    def _watch(self) -> RunWatcher:
        settings = self._settings
        volume = str(settings.dir)

        def ask_wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
            return ask(volume, request, seconds)

        off_pod = OffPod(ask_wrapper, lambda: self.live.save, lambda: bool(self._is_acting()))
        return RunWatcher(
            self._places, self.engine, self.live,
            SidecarRecord(self.engine, self._observe, self._live_page),
            self.metrics, self._view, self.faults,
            is_act=False,
            extra=EvidenceExtras(self.live, self.page.body),
            off_pod=None if settings.evidence is not None else off_pod,
            out=self.out,
            files=self._files,
        )  # fmt: skip

    def _make_page(self) -> LivePage:
        settings = self._settings
        return LivePage(
            self.metrics.snapshots, commands=partial(_commands, settings),
            wrapper=lambda: self.live.wrapper, title=f"{settings.run} · pod {settings.pod}",
            cpu_share=_PAGE_SHARE,
        )  # fmt: skip

    def _made_pages(self) -> Pages:
        watch = self.watch
        evidence = EvidenceApi(
            watch.evidence, watch.files, watch.clock.now, watch.running, self.live.poll_save_soon
        )
        restart = partial(restart_with_evidence, self._settings.dir, evidence)
        return {
            **({} if self._live_page is None else self._live_page.pages()),
            **standard_pages(self.metrics.snapshots, self.metrics.since_tick),
            "/v1/snapshot": self.page.page,
            **control_pages(self._settings.token_file, evidence, restart),
        }

    def _observe(self, observed: Observed) -> None:
        file = self.live.log.file
        if not self._cursor.is_old(observed, file):
            self.page.observe(observed, file)
        self._pod.observe(observed)

    def _leave_snapshot(self) -> None:
        live = self.live
        newest = self.metrics.snapshots()
        if not newest:
            return
        job = self.engine.job
        evaluated = Evaluated(
            newest[0], time.monotonic(), live.clock.drift(), live.probes, live.read_at,
            list(job.attempt.signs.values()),
            {rank: state.progressed_at for rank, state in job.attempt.ranks.items()},
            job.calibration.step_p99(),
            None if live.unwatched is None else live.unwatched.why,
        )  # fmt: skip
        self.page.update(evaluated, live.wrapper, self._pod.facts())

    def _errors(self) -> int:
        return self.faults.count + (0 if self._pages is None else self._pages.failures)

    def _is_acting(self) -> bool | None:
        wrapper = self.live.wrapper
        mode = self._settings.mode or (None if wrapper is None else wrapper.mode)
        return None if not mode else mode == contract.ACT


def _who(settings: SidecarSettings, now: float) -> PodId:
    return PodId(
        run=settings.run,
        pod=settings.pod,
        uid=settings.pod_uid,
        namespace=settings.namespace,
        node=settings.node,
        boot=_boot_id(),
        mwatch=__version__,
        started_at=now,
        mode=settings.mode,
    )


def _commands(settings: SidecarSettings) -> list[tuple[str, str]]:
    place = f" -n {settings.namespace}" if settings.namespace else ""
    job = f"{settings.run}{place}"
    return [
        ("Show the verdict over all pods of the job", f"mwatch diagnose {job}"),
        ("Show the checkpoints", f"mwatch checkpoints {job}"),
        ("Stop all actions for two hours", f'mwatch pause {job} --for 2h --reason "…"'),
        ("Show what a restart would do", f'mwatch restart {job} --dry-run --reason "…"'),
        ("Let mwatch restart the job when it fails", f'mwatch mode {job} act --reason "…"'),
    ]


def _attributes(settings: SidecarSettings) -> dict[str, str]:
    known = {
        "k8s.pod.name": settings.pod,
        "k8s.pod.uid": settings.pod_uid,
        "k8s.namespace.name": settings.namespace,
        "k8s.node.name": settings.node,
    }
    return {name: value for name, value in known.items() if value is not None}


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return None
