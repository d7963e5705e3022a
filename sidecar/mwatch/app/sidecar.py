# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch sidecar`: watches one training pod from the container beside it, for months.

One loop, once a second: read what is new, look, tell. It changes nothing about the training and
survives whatever happens to the volume, the wrapper, the clock, the disk or itself; only a signal
ends it. What it cannot see it says: in its lines, in `mwatch_source_up` and in `mwatch_blind`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mwatch import __version__
from mwatch.act.off_pod import OffPod
from mwatch.app import catalogue
from mwatch.app.aside_files import AsideFiles
from mwatch.app.asked_to_end import asked_to_end
from mwatch.app.clock import Clock
from mwatch.app.cursor_file import CursorFile
from mwatch.app.engine import Engine
from mwatch.app.evidence_desk import EvidenceDesk
from mwatch.app.evidence_extras import EvidenceExtras
from mwatch.app.live import Live
from mwatch.app.more_eyes import PodEyes
from mwatch.app.own_faults import OwnFaults
from mwatch.app.pod_watch import PodWatch
from mwatch.app.restart_desk import RestartDesk
from mwatch.app.ring_cursor import Place
from mwatch.app.run_metrics import RunMetrics
from mwatch.app.run_view import SafeView, View
from mwatch.app.run_watch import RunWatch
from mwatch.app.sidecar_pages import SidecarPages
from mwatch.app.sidecar_record import SidecarRecord
from mwatch.app.sidecar_settings import SidecarSettings
from mwatch.app.snapshot_page import Looked, SnapshotPage
from mwatch.app.source_news import SourceNews
from mwatch.app.ways_out import WaysOut
from mwatch.export.control_pages import control_pages
from mwatch.export.pages import standard_pages
from mwatch.export.request import Pages
from mwatch.model.observation import Observed
from mwatch.model.pod import Who
from mwatch.model.settings import Settings
from mwatch.parse.grammar import Grammar
from mwatch_trainer import contract
from mwatch_trainer.control_client import ask
from mwatch_trainer.scrub import scrub_text

TICK_SECONDS = 1.0
MAX_INCIDENTS = 16
MAX_BYTES = 128 << 20
"""Of all evidence on the volume: a volume that overruns takes the trainer with it."""
LAST_SECONDS = 15.0
"""After the end of the last attempt: a scrape, or three polls of a controller."""
_DRAIN_SECONDS = 0.3

clean = scrub_text


class _Places:
    """Where this sidecar reads and writes. Evidence on the volume is brought off the pod by the
    wrapper, which can write beside the checkpoints."""

    def __init__(self, settings: SidecarSettings) -> None:
        self.volume = self.path = settings.dir
        self.incidents = settings.evidence or settings.dir / "incidents"


def run(settings: SidecarSettings, view: View) -> int:
    """Until a signal; InputError for what a person gave and cannot be used."""
    thresholds = Settings()
    if settings.policy is not None:
        from mwatch.app import policy

        thresholds = policy.load(settings.policy)
    with asked_to_end() as asked, ExitStack() as stack:
        sidecar = Sidecar(settings, thresholds, SafeView(view))
        stack.callback(sidecar.close)
        sidecar.turn()
        sidecar.listen()
        while not asked.is_set() and not sidecar.is_over():
            began = time.monotonic()
            sidecar.turn()
            asked.wait(max(0.0, TICK_SECONDS - (time.monotonic() - began)))
    return 0


class Sidecar:
    def __init__(self, settings: SidecarSettings, thresholds: Settings, view: View) -> None:
        self._settings = settings
        self._view = view
        self.faults = OwnFaults(view.noted)
        self._pages: SidecarPages | None = None
        self._final_at: float | None = None
        entries = catalogue.load([])
        known = {entry.id: entry for entry in entries}
        clock = Clock()
        self.engine = Engine(settings.run, known, thresholds)
        eyes = PodEyes(
            settings.pod, self.engine, node=settings.node, tensorboard=settings.tensorboard
        )
        self.live = Live(
            settings.dir, settings.pod, Grammar(entries, None), known, clock, settings.save,
            node=settings.node, more=eyes,
        )  # fmt: skip
        self.metrics = RunMetrics(
            self.engine, self.live, is_acting=self._is_acting, errors=self._errors,
            dropped=lambda: self.out.dropped(),
        )  # fmt: skip
        self.out = WaysOut(
            self.metrics.snapshots,
            otlp_endpoint=settings.otlp_endpoint,
            tensorboard_notes=settings.tensorboard_notes,
            attributes=_attributes(settings),
        )
        self._pod = PodWatch(self.live)
        self._cursor = CursorFile(settings.dir)
        began = self._cursor.began
        who = _who(settings, clock.now())
        place = Place(began.file, began.line)
        self.page = SnapshotPage(who, began.life, newest=began.newest, place=place)
        self._places = _Places(settings)
        self._files = AsideFiles(
            self._places.incidents, max_incidents=MAX_INCIDENTS, max_bytes=MAX_BYTES
        )
        self.watch = self._watch()
        self._news = SourceNews()

    def listen(self) -> None:
        """InputError where no port can be had."""
        settings = self._settings
        self._pages = SidecarPages(settings, self._made_pages(), self.live.clock.now())
        self._view.noted(
            f"mwatch sidecar {__version__}: run {settings.run}, pod {settings.pod}, "
            f"watching {settings.dir}, {self._pages.where}/metrics"
        )

    def turn(self) -> None:
        """Once around: whatever fails is told, and the next turn comes."""
        with self.faults.survived():
            self.watch.look()
            self._cursor.keep(self.page.ring.newest, self.live.log.file)
            self._leave_snapshot()
        with self.faults.survived():
            for text in self._news.of(self.live.sighted, self.live.clock.now()):
                self._view.noted(text)
        with self.faults.survived():
            problem = None if self._pages is None else self._pages.keep_file()
            if problem is not None:
                self._view.noted(problem)

    def is_over(self) -> bool:
        """No attempt follows in this pod, and everybody who polls us has had time to see that."""
        wrapper = self.live.wrapper
        if not self._settings.until_final or wrapper is None or not wrapper.is_final:
            self._final_at = None
            return False
        if self._final_at is None:
            self._final_at = time.monotonic()
            self._view.noted("the last attempt of this pod has ended")
        return time.monotonic() - self._final_at >= LAST_SECONDS

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()
        with self.faults.survived():
            self.watch.end(is_hurried=True)
            self._files.drain(_DRAIN_SECONDS)
        with self.faults.survived():
            self.out.close()
        if self._pages is not None:
            self._view.noted("ended")

    def _watch(self) -> RunWatch:
        settings = self._settings
        volume = str(settings.dir)

        def ask_wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
            return ask(volume, request, seconds)

        off_pod = OffPod(ask_wrapper, lambda: self.live.save, lambda: bool(self._is_acting()))
        return RunWatch(
            self._places, self.engine, self.live,
            SidecarRecord(self.engine, self._told), self.metrics, self._view, self.faults,
            is_act=False,
            extra=EvidenceExtras(self.live, self.page.body),
            off_pod=None if settings.evidence is not None else off_pod,
            out=self.out,
            files=self._files,
        )  # fmt: skip

    def _made_pages(self) -> Pages:
        watch = self.watch
        desk = EvidenceDesk(
            watch.evidence, watch.files, watch.clock.now, watch.running, self.live.look_soon
        )
        restart = RestartDesk(self._settings.dir, desk).restart
        return {
            **standard_pages(self.metrics.snapshots, self.metrics.since_tick),
            "/v1/snapshot": self.page.page,
            **control_pages(self._settings.token_file, desk, restart),
        }

    def _told(self, observed: Observed) -> None:
        file = self.live.log.file
        if not self._cursor.is_old(observed, file):
            self.page.told(observed, file)
        self._pod.told(observed)

    def _leave_snapshot(self) -> None:
        live = self.live
        newest = self.metrics.snapshots()
        if not newest:
            return
        job = self.engine.job
        looked = Looked(
            newest[0], time.monotonic(), live.clock.drift(), live.probes, live.looked_at,
            list(job.attempt.signs.values()),
            {rank: state.progressed_at for rank, state in job.attempt.ranks.items()},
            job.calibration.step_p99(),
        )  # fmt: skip
        self.page.looked(looked, live.wrapper, self._pod.facts())

    def _errors(self) -> int:
        """Faults of ours, in the loop and in the pages."""
        return self.faults.count + (0 if self._pages is None else self._pages.failures)

    def _is_acting(self) -> bool | None:
        wrapper = self.live.wrapper
        mode = self._settings.mode or (None if wrapper is None else wrapper.mode)
        return None if not mode else mode == contract.ACT


def _who(settings: SidecarSettings, now: float) -> Who:
    return Who(
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


def _attributes(settings: SidecarSettings) -> dict[str, str]:
    """Of the pod, by the names that OpenTelemetry has for them."""
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
