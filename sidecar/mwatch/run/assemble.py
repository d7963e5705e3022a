# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Assembles a local run: folder, engine, sources, metrics, exporters and the user's view.

`RunRecord` keeps the results of a run: its report (`story.json`), its incidents, and what it
learned. The report is replaced every few seconds, so that a run whose watcher was killed still has
one. A disk that cannot be written to is reported once and has no other effect.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mwatch.config import catalogue
from mwatch.config.loader import load_policy
from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import Incident
from mwatch.errors import InputError
from mwatch.model.decision import Decision
from mwatch.model.observation import HERE, Observed
from mwatch.model.settings import Settings
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.report import story_json
from mwatch.report.history import joined
from mwatch.report.model import EvidenceFile
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport
from mwatch.run import folder as run_folder
from mwatch.run.folder import RunFolder
from mwatch.run.process import TrainerOutput
from mwatch.run.supervisor import LocalRun, SupervisedCommand
from mwatch.run.unattended import (
    UnattendedRun,
    call_of,
    find_just_started,
    unattended_runs,
    watching,
)
from mwatch.runtime.clock import Clock
from mwatch.runtime.self_monitoring import InternalErrors
from mwatch.watch.collector import PodSources, VolumeCollector
from mwatch.watch.incidents import EvidenceExtras
from mwatch.watch.metrics import Exporters, NotifyTarget, RunMetrics, serve
from mwatch.watch.page import LivePage
from mwatch.watch.watcher import RunEnd, RunObserver, RunRecorder, RunWatcher, SafeObserver
from mwatch_trainer import contract
from mwatch_trainer.scrub.known_good import scrubbed
from mwatch_trainer.scrub.scrubber import Scrubber

_STORY_SECONDS = 5.0
_MEMORY_SECONDS = 5.0


class RunRecord(RunRecorder):
    def __init__(
        self,
        folder: RunFolder,
        argv: Sequence[str],
        engine: Engine,
        clock: Clock,
        *,
        is_act: bool,
        page: LivePage | None = None,
        past: RunReport | None = None,
    ) -> None:
        """`past`: the report of an earlier watcher of the same run."""
        super().__init__(engine)
        self._past = past
        self._folder = folder
        self._clock = clock
        self._is_act = is_act
        self._page = page
        command = shlex.join(scrubbed(argv, Scrubber()))
        self._recorder = ReportRecorder(engine, "act" if is_act else "observe", command)
        self._written_at = float("-inf")
        self._problem: str | None = None

    def observe(self, observed: Observed) -> None:
        self._recorder.note(observed)

    def wait_for_memory(self) -> None:
        """Wait a bounded time for the saved state, before a decision that depends on it."""
        if self._saved is not None:
            self._saved.wait(_MEMORY_SECONDS)

    def looked(self, assessment: Assessment) -> None:
        self._recorder.assessed(assessment)
        now = self._clock.now()
        if now - self._written_at >= _STORY_SECONDS:
            self._written_at = now
            self._write(is_over=False)
        if self._page is not None:
            self._page.update(lambda: self._report(now))

    def enacted(self, decision: Decision, at: float) -> None:
        self._recorder.enacted(decision, at)

    def incident(self, incident: Incident, files: Sequence[EvidenceFile]) -> None:
        self._recorder.incident(incident, files)

    def noted(self, text: str) -> None:
        self._recorder.noted(text)

    def attempt_ended(self) -> None:
        if self._is_act and self._saved is not None:
            self._saved.keep(self._engine.job)

    def end(self, ended: RunEnd | None = None) -> None:
        is_interrupted = ended is not None and ended.is_interrupted
        self._write(is_over=True, is_interrupted=is_interrupted)
        if self._page is not None:
            now = self._clock.now()
            self._page.finish(self._report(now, is_over=True, is_interrupted=is_interrupted))

    def _report(
        self, now: float, *, is_over: bool = False, is_interrupted: bool = False
    ) -> RunReport:
        report = self._recorder.report(now, is_over=is_over, is_interrupted=is_interrupted)
        return joined(self._past, report)

    def problems(self) -> list[str]:
        return super().problems() + ([] if self._problem is None else [self._problem])

    def _write(self, *, is_over: bool, is_interrupted: bool = False) -> None:
        try:
            now = self._clock.now()
            report = self._report(now, is_over=is_over, is_interrupted=is_interrupted)
            story_json.write(report, self._folder.story)
        except OSError as error:
            self._problem = f"cannot write {self._folder.story}: {error.strerror or error}"


@dataclass(frozen=True, slots=True)
class ShownRun:
    """What a view can show besides the events that it receives."""

    folder: RunFolder
    page: str | None = None
    """The address of the page, if it is served."""
    metrics: str | None = None
    snapshots: Callable[[], Sequence[Snapshot]] = tuple

    @property
    def where(self) -> str:
        """The addresses of the page and the metrics; without either, the folder."""
        found = {"page": self.page, "metrics": self.metrics}
        shown = ", ".join(f"{name} {url}" for name, url in found.items() if url)
        return shown or str(self.folder.path)


MakeView = Callable[[ShownRun], RunObserver]


@dataclass(frozen=True, slots=True)
class RunRequest:
    argv: Sequence[str]
    is_act: bool = False
    policy: Path | None = None
    settings: Settings | None = None
    """Used if there is no policy file."""
    name: str | None = None
    parent: Path = Path("runs")
    folder: RunFolder | None = None
    """An existing folder; replaces `name` and `parent`."""
    adopted: UnattendedRun | None = None
    """A run that continues without its `mwatch run`; `folder` is set too."""
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    working_folder: str | None = None
    save: Path | None = None
    port: int | None = 9401
    """Port of /metrics and the page; None: not served."""
    has_page: bool = True
    grace_seconds: float = 30.0
    has_probe: bool = True
    output: TrainerOutput = TrainerOutput.DIRECT
    otlp_endpoint: str | None = None
    tensorboard_notes: Path | None = None
    notify: Sequence[str] = field(default=(), repr=False)
    """URLs of services to notify of incidents; they contain secrets."""


def run(request: RunRequest, make_view: MakeView) -> RunEnd:
    """Run the command to its end; raise InputError only before anything is started."""
    settings = load_policy(request.policy) if request.policy else request.settings or Settings()
    known, grammar = catalogue.with_grammar()
    clock = Clock()
    others = [] if request.folder else _unattended(request)
    folder = request.folder or run_folder.make(
        request.parent, request.name, request.argv, clock.now()
    )
    engine = Engine(folder.name, known, settings)
    live = VolumeCollector(
        folder.volume, HERE, grammar, known, clock, request.save,
        more=PodSources(HERE, engine),
    )  # fmt: skip
    is_act = request.is_act
    with ExitStack() as stack:
        faults = InternalErrors(lambda text: note(text))
        metrics = RunMetrics(
            engine, live, is_acting=lambda: is_act, errors=lambda: faults.count,
            dropped=lambda: out.dropped(),
        )  # fmt: skip
        page = LivePage(
            metrics.snapshots, commands=partial(_commands, folder, is_act=is_act),
            wrapper=lambda: live.wrapper, is_local=True,
        )  # fmt: skip
        pages = page.pages() if request.has_page else {}
        stack.enter_context(serve(request.port, metrics, pages))
        out = Exporters(
            metrics.snapshots,
            otlp_endpoint=request.otlp_endpoint,
            tensorboard_notes=request.tensorboard_notes,
            notify=_notify(request, folder, metrics),
        )
        stack.callback(out.close)
        stack.enter_context(watching(folder, request.grace_seconds, clock.now()))
        record = RunRecord(
            folder, request.argv, engine, clock, is_act=is_act, page=page, past=_past(request)
        )
        view = SafeObserver(make_view(_shown(metrics, folder, has_page=request.has_page)))
        if metrics.problem is not None:
            view.noted(metrics.problem)
        if request.adopted is not None:
            log = os.path.relpath(folder.log)
            view.noted(f"adopted: {request.adopted.text}; what it prints now is in {log}")
        for each in others:
            view.noted(f"{each.text}; {each.fix}")

        def note(text: str) -> None:
            view.noted(text)
            record.noted(text)

        watch = RunWatcher(
            folder, engine, live, record, metrics, view, faults,
            is_act=is_act, extra=EvidenceExtras(live), out=out,
        )  # fmt: skip
        return LocalRun(_command(request, folder), watch, view, faults, note).run()


def adopt(request: RunRequest, folder: RunFolder) -> RunRequest:
    """Return the request to watch a run that continues without its `mwatch run`; raise InputError
    if there is none."""
    found = find_just_started(folder)
    if found is None:
        raise InputError(f"{folder.path}: nothing of it runs that could be adopted")
    call = call_of(found)
    options = call.options
    if request.is_act and options.mode != contract.ACT:
        raise InputError(f"run {folder.name} was started without --act: adopt it without, too")
    grace = options.grace_seconds
    return replace(
        request, argv=options.command, is_act=options.mode == contract.ACT, folder=folder,
        save=None if options.checkpoints is None else Path(options.checkpoints),
        grace_seconds=request.grace_seconds if grace is None else grace,
        has_probe=options.with_probe, adopted=found, environ=call.environ,
        working_folder=call.folder,
    )  # fmt: skip


def _unattended(request: RunRequest) -> list[UnattendedRun]:
    """Return the runs that continue unwatched; raise InputError if one has the new run's name."""
    found = unattended_runs(request.parent)
    for each in found:
        if each.folder.name == request.name:
            raise InputError(f"{each.text}; {each.fix}; or give another --name")
    return found


def _past(request: RunRequest) -> RunReport | None:
    if request.adopted is None:
        return None
    try:
        return story_json.read(request.adopted.folder.story)
    except (InputError, OSError):
        return None


def _shown(metrics: RunMetrics, folder: RunFolder, *, has_page: bool) -> ShownRun:
    where = metrics.where
    page = where.removesuffix("metrics") if where is not None and has_page else None
    return ShownRun(folder, page, where, metrics.snapshots)


def _notify(request: RunRequest, folder: RunFolder, metrics: RunMetrics) -> NotifyTarget | None:
    """The page is served only on this machine, so a message names the machine too."""
    if not request.notify:
        return None
    link = f"mwatch ui {shlex.quote(str(folder.path.resolve()))} on {socket.gethostname()}"
    if metrics.where is not None and request.has_page:
        link = f"{metrics.where.removesuffix('metrics')}, or {link}"
    return NotifyTarget(request.notify, link, request.is_act)


def _commands(folder: RunFolder, *, is_act: bool) -> list[tuple[str, str]]:
    place = shlex.quote(os.path.relpath(folder.path))
    found = [
        ("Show the verdict and its evidence", f"mwatch diagnose {place}"),
        ("Make one file of this page, to forward", f"mwatch report {place}"),
        ("Open this page after the run has ended", f"mwatch ui {place}"),
        ("End the run, with a last checkpoint if it can save one", f"kill -INT {os.getpid()}"),
    ]
    if not is_act:
        again = "mwatch run --act -- COMMAND"
        found.append(("Run the command again and let mwatch restart it", again))
    return found


def _command(request: RunRequest, folder: RunFolder) -> SupervisedCommand:
    options = ["--grace", f"{request.grace_seconds:g}"]
    if request.save is not None:
        options += ["--checkpoints", str(request.save)]
    if not request.has_probe:
        options.append("--no-probe")
    return SupervisedCommand(
        argv=request.argv,
        folder=folder,
        is_act=request.is_act,
        grace_seconds=request.grace_seconds,
        wrapper_options=options,
        output=request.output,
        adopted=request.adopted,
        environ=request.environ,
        working_folder=request.working_folder,
    )
