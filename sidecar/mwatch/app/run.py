# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Puts a local run together: its folder, engine, eyes and metrics, and whoever looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mwatch.app import catalogue, policy, run_folder
from mwatch.app.clock import Clock
from mwatch.app.engine import Engine
from mwatch.app.evidence_extras import EvidenceExtras
from mwatch.app.live import Live
from mwatch.app.local_run import LocalRun, Watched
from mwatch.app.more_eyes import PodEyes
from mwatch.app.own_faults import OwnFaults
from mwatch.app.run_folder import RunFolder
from mwatch.app.run_metrics import RunMetrics, serve
from mwatch.app.run_record import RunRecord
from mwatch.app.run_view import Ended, SafeView, View
from mwatch.app.run_watch import RunWatch
from mwatch.app.ways_out import WaysOut
from mwatch.model.observation import HERE
from mwatch.model.settings import Settings
from mwatch.parse.grammar import Grammar

MakeView = Callable[[RunFolder, str], View]
"""Of the run's folder, and where more can be seen."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    argv: Sequence[str]
    is_act: bool = False
    policy: Path | None = None
    settings: Settings | None = None
    """Instead of a policy file."""
    name: str | None = None
    parent: Path = Path("runs")
    folder: RunFolder | None = None
    """Made already; then `name` and `parent` say nothing."""
    save: Path | None = None
    port: int | None = 9401
    """For /metrics; None: nowhere."""
    grace_seconds: float = 30.0
    has_probe: bool = True
    shows_output: bool = False
    otlp_endpoint: str | None = None
    tensorboard_notes: Path | None = None


def run(request: RunRequest, make_view: MakeView) -> Ended:
    """InputError before anything is started; after that, the end of the run."""
    settings = request.settings or Settings()
    if request.policy is not None:
        settings = policy.load(request.policy)
    entries = catalogue.load([])
    known = {entry.id: entry for entry in entries}
    grammar = Grammar(entries, None)
    clock = Clock()
    folder = request.folder
    if folder is None:
        folder = run_folder.make(request.parent, request.name, request.argv, clock.now())
    engine = Engine(folder.name, known, settings)
    eyes = PodEyes(HERE, engine)
    live = Live(folder.volume, HERE, grammar, known, clock, request.save, more=eyes)
    return _watched(request, make_view, folder, engine, live)


def _watched(
    request: RunRequest, make_view: MakeView, folder: RunFolder, engine: Engine, live: Live
) -> Ended:
    is_act = request.is_act
    with ExitStack() as stack:
        faults = OwnFaults(lambda text: tell(text))
        metrics = RunMetrics(
            engine, live, is_acting=lambda: is_act, errors=lambda: faults.count,
            dropped=lambda: out.dropped(),
        )  # fmt: skip
        stack.enter_context(serve(request.port, metrics))
        out = WaysOut(
            metrics.snapshots,
            otlp_endpoint=request.otlp_endpoint,
            tensorboard_notes=request.tensorboard_notes,
        )
        stack.callback(out.close)
        record = RunRecord(folder, request.argv, engine, live.clock, is_act=is_act)
        view = SafeView(make_view(folder, metrics.where or str(folder.path)))
        if metrics.problem is not None:
            view.noted(metrics.problem)

        def tell(text: str) -> None:
            view.noted(text)
            record.noted(text)

        watch = RunWatch(
            folder, engine, live, record, metrics, view, faults,
            is_act=is_act, extra=EvidenceExtras(live), out=out,
        )  # fmt: skip
        return LocalRun(_command(request, folder), watch, view, faults).run()


def _command(request: RunRequest, folder: RunFolder) -> Watched:
    return Watched(
        argv=request.argv,
        folder=folder,
        is_act=request.is_act,
        grace_seconds=request.grace_seconds,
        wrapper_options=_options(request),
        shows_output=request.shows_output,
    )


def _options(request: RunRequest) -> list[str]:
    options = ["--grace", f"{request.grace_seconds:g}"]
    if request.save is not None:
        options += ["--checkpoints", str(request.save)]
    if not request.has_probe:
        options.append("--no-probe")
    return options
