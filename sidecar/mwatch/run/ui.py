# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch ui`: serves the pages of runs on this machine from the files that they wrote.

An unfinished run writes its report every few seconds, so its page is live too. What only its
watcher knows (the state of each rank, the next action) is on the page of `mwatch run`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from mwatch.errors import InputError, MwatchError
from mwatch.export.http.server import Page, Pages, Request, Server
from mwatch.report import story_json
from mwatch.report.files import STORY
from mwatch.report.html import live
from mwatch.report.run_report import RunReport
from mwatch.run.folder import RunFolder
from mwatch.run.unattended import UnattendedRun, find, unattended_runs
from mwatch.watch.page import LivePage, foreign, html_page

MAX_RUNS = 100
_READ_SECONDS = 3.0
"""Time limit to read the reports for one list; the rest is read for the next one."""
_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)


class StoredRun:
    """The report of one run folder, read again whenever it has changed."""

    def __init__(self, folder: RunFolder, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._now = now
        self._lock = threading.Lock()
        self._known: tuple[tuple[int, int], RunReport] | None = None
        self.page = LivePage(list, read=self.read, commands=self._commands, is_local=True)

    def read(self) -> RunReport:
        """Return the report; raise InputError if it is missing or unreadable."""
        try:
            status = self.folder.story.stat()
        except OSError:
            text = f"{self.folder.name} has no {STORY} yet"
            raise InputError(f"{text}; 'mwatch run' writes it within seconds") from None
        state = (status.st_mtime_ns, status.st_size)
        with self._lock:
            if self._known is None or self._known[0] != state:
                self._known = state, story_json.read(self.folder.story)
            report = self._known[1]
        left = None if report.is_over else find(self.folder)
        return report.seen_at(self._now(), None if left is None else left.text)

    @property
    def written_at(self) -> float:
        for path in (self.folder.story, self.folder.path):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    def _commands(self) -> list[tuple[str, str]]:
        place = shlex.quote(os.path.relpath(self.folder.path))
        left = find(self.folder)
        return [
            *([] if left is None else left.commands),
            ("Show the verdict and its evidence", f"mwatch diagnose {place}"),
            ("Make one file of this page, to forward", f"mwatch report {place}"),
        ]


class StoredRuns:
    """The runs of a folder: a list, and a page for each."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._runs: dict[str, StoredRun] = {}
        """By the part of the address that names the run."""

    def pages(self) -> Pages:
        return {"/": self._list, "/run/{}/": self._page, "/run/{}/page.json": self._changes}

    def find(self) -> list[StoredRun]:
        """Return all runs, the newest first."""
        try:
            found = [each for each in self._parent.iterdir() if is_run(each)]
        except OSError:
            found = []
        with self._lock:
            known = self._runs
            self._runs = {}
            for each in found:
                key = address_of(each.name)
                self._runs[key] = known.get(key) or StoredRun(RunFolder(each.resolve()))
            return sorted(self._runs.values(), key=lambda each: -each.written_at)

    def _list(self, request: Request) -> Page:
        if (refused := foreign(request)) is not None:
            return refused
        runs, until = self.find(), time.monotonic() + _READ_SECONDS
        rows = [self._row(each, until) for each in runs[:MAX_RUNS]]
        title = f"Runs in {self._parent.resolve().name}"
        text = live.runs_page(rows, title, max(0, len(runs) - MAX_RUNS))
        return html_page(text, live.policy(*live.RUNS_SCRIPTS))

    def _row(self, run: StoredRun, until: float) -> live.RunRow:
        name = run.folder.name
        link = f"run/{address_of(name)}/"
        if time.monotonic() > until:
            return live.RunRow(name, link, None)
        try:
            return live.RunRow(name, link, run.read())
        except MwatchError as error:
            return live.RunRow(name, link, None, str(error))

    def _page(self, request: Request) -> Page:
        run = self._run(request)
        return _absent() if run is None else run.page.page(request)

    def _changes(self, request: Request) -> Page:
        run = self._run(request)
        return _absent() if run is None else run.page.changes(request)

    def _run(self, request: Request) -> StoredRun | None:
        if request.parameter not in self._runs:
            self.find()
        return self._runs.get(request.parameter)


def _absent() -> Page:
    return Page(b"there is no such run\n", status=HTTPStatus.NOT_FOUND)


def is_run(folder: Path) -> bool:
    return (folder / STORY).is_file() or (folder / "volume").is_dir()


def address_of(name: str) -> str:
    """Return the part of an address that names a run: its name, or a hash if that is not plain."""
    if _PLAIN.fullmatch(name):
        return name
    return f"-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}"


def unattended(run: Path | None, parent: Path) -> list[UnattendedRun]:
    """Return those of the runs to show that continue without their `mwatch run`."""
    if run is None:
        return unattended_runs(parent)
    found = (find(RunFolder(each.resolve())) for each in (run, parent / run) if is_run(each))
    return [each for each in found if each is not None][:1]


def folder_of(run: Path, parent: Path) -> RunFolder:
    """Return the folder of a run, given as a path or a name; raise InputError if there is none."""
    for folder in (run, parent / run):
        if is_run(folder):
            return RunFolder(folder.resolve())
    what = "is not the folder of a run" if run.is_dir() else "does not exist"
    raise InputError(f"{run} {what}; name one that 'mwatch run' has made, such as {parent}/NAME")


def pages_of(run: Path | None, parent: Path) -> Pages:
    """Return the pages of one run (a folder or a name) or of all runs in `parent`; raise InputError
    if there is none."""
    if run is None:
        if not parent.is_dir():
            fix = "name the folder of a run, start one with 'mwatch run', or give -n for a cluster"
            raise InputError(f"there is no folder {parent} here; {fix}")
        return StoredRuns(parent).pages()
    return StoredRun(folder_of(run, parent)).page.pages()


def serve(pages: Pages, port: int) -> Server:
    """Listen on the loopback address, on `port` or the next free one."""
    try:
        return Server(pages, port=port)
    except OSError as error:
        text = f"cannot listen on port {port}: {error.strerror or error}"
        raise InputError(f"{text}; name another with --port") from None
