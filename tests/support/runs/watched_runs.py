# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched run on a real volume, as `mwatch run` and the sidecar assemble it; no command runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mwatch.engine.engine import Engine
from mwatch.run.assemble import RunRecord
from mwatch.runtime.self_monitoring import InternalErrors
from mwatch.watch.collector import VolumeCollector
from mwatch.watch.metrics import RunMetrics
from mwatch.watch.watcher import RunWatcher
from mwatch_trainer import contract
from support.builders.events import grammar
from support.builders.job import entries
from support.builders.run import Heard, TestClock, run_folder
from support.builders.volume import write_attempt


class Watched:
    def __init__(self, path: Path, *, is_act: bool = True, engine: Engine | None = None) -> None:
        self.folder = run_folder(path)
        self.save = path / "ckpt"
        self.save.mkdir()
        self.clock = TestClock()
        self.engine = engine or Engine("r", entries())
        self.view = Heard()
        live = VolumeCollector(
            self.folder.volume, "local", grammar(faults=True), entries(), self.clock
        )
        record = RunRecord(self.folder, ["x"], self.engine, self.clock, is_act=is_act)
        metrics = RunMetrics(self.engine, live)
        faults = InternalErrors(self.view.noted)
        self.watch = RunWatcher(
            self.folder, self.engine, live, record, metrics, self.view, faults, is_act=is_act
        )
        self.metrics = metrics
        self.watch.begin()

    def start(self, number: int, **change: Any) -> None:
        usual: dict[str, Any] = {"started_at": self.clock.now(), "save": str(self.save)}
        write_attempt(self.folder.volume, number, **(usual | change))

    def say(self, *lines: str) -> None:
        """One a second, with a look after each."""
        for each in lines:
            with (self.folder.volume / contract.LOG).open("a") as file:
                file.write(f"{each}\n")
            self.clock.monotonic += 1
            self.watch.look()


@contextmanager
def watching(path: Path, *, is_act: bool = True, engine: Engine | None = None) -> Iterator[Watched]:
    watched = Watched(path, is_act=is_act, engine=engine)
    try:
        yield watched
    finally:
        watched.watch.end()


def records(watched: Watched) -> list[dict[str, Any]]:
    files = sorted(watched.folder.incidents.glob("*/incident.json"))
    return [json.loads(each.read_text("utf-8")) for each in files]
