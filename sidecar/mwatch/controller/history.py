# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The history of each job for its page, which survives a restart of the controller.

The shortened reports of the jobs are in one ConfigMap next to the ledger, bounded like it; if they
do not fit, the oldest are dropped. No decision depends on them: if they are lost or may not be
read, only the page shows less. Only the leader writes, at most once a minute; the loop makes one
report a turn, and a thread does the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoPermission, Rejected
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.kube.fields import text, text_map
from mwatch.report import history
from mwatch.report.run_report import RunReport

NAME = "mwatch-history"
MAX_BYTES = 800_000
SAVE_SECONDS = 60.0
"""The least time between two writes, and between two reports of a job that has changed."""
_REST_SECONDS = 900.0
"""The least time between two reports of a job if only its curves have grown."""
_CLOSE_SECONDS = 3.0


class _Stored(NamedTuple):
    uid: str
    at: float
    report: str

    @classmethod
    def read(cls, line: str) -> _Stored | None:
        uid, _, rest = line.partition(" ")
        at, _, report = rest.partition(" ")
        try:
            return cls(uid, float(at), report)
        except ValueError:
            return None

    @property
    def line(self) -> str:
        return f"{self.uid} {self.at:.0f} {self.report}"


class _Written(NamedTuple):
    mark: tuple[object, ...]
    at: float


class HistoryStore:
    """The ConfigMap. Safe to use from any thread."""

    def __init__(self, access: Access, namespace: str, log: Callable[[str], None]) -> None:
        self._access = access
        self._namespace = namespace
        self._log = log
        self._lock = threading.Lock()
        self.is_refused = False

    def recall(self, key: str, uid: str) -> RunReport | None:
        """None: nothing is stored, or it may not be read. KubeError if the cluster fails."""
        if self.is_refused:
            return None
        try:
            data, _ = self._read()
        except (NoPermission, Rejected) as error:
            self._refuse(error)
            return None
        stored = _Stored.read(data.get(key, ""))
        return None if stored is None or stored.uid != uid else history.from_text(stored.report)

    def save(self, reports: Mapping[str, tuple[str, float, RunReport]]) -> bool:
        """`reports`: UID, time and report by job. False: another writer was faster. Raises
        KubeError."""
        if self.is_refused:
            return True
        fresh = {}
        for key, (uid, at, report) in reports.items():
            line = history.to_text(report)
            if line is not None:
                fresh[key] = _Stored(uid, at, line).line
        with self._lock:
            try:
                data, version = self._read()
                return self._write(bounded({**data, **fresh}), version)
            except (NoPermission, Rejected) as error:
                self._refuse(error)
                return True

    def _refuse(self, error: KubeError) -> None:
        self.is_refused = True
        self._log(f"the history of jobs is not kept over a restart: {error}")

    def _read(self) -> tuple[dict[str, str], str | None]:
        answer = self._access.get(CONFIG_MAPS, self._namespace, NAME)
        if not answer.is_ok:
            return {}, None
        version = text(answer.body, "metadata", "resourceVersion")
        return dict(text_map(answer.body, "data")), version

    def _write(self, data: Mapping[str, str], version: str | None) -> bool:
        about = {"name": NAME, "namespace": self._namespace}
        if version is None:
            body = {"metadata": about, "data": data}
            return self._access.create(CONFIG_MAPS, self._namespace, body).is_ok
        body = {"metadata": {**about, "resourceVersion": version}, "data": data}
        return self._access.replace(CONFIG_MAPS, self._namespace, NAME, body).is_ok


def bounded(data: Mapping[str, str], most: int = MAX_BYTES) -> dict[str, str]:
    """The newest reports that fit; those that cannot be read are dropped."""
    known = {key: _Stored.read(line) for key, line in data.items()}
    newest = sorted(
        (key for key, stored in known.items() if stored is not None),
        key=lambda key: -(stored.at if (stored := known[key]) is not None else 0.0),
    )
    kept, left = {}, most
    for key in newest:
        left -= len(key) + len(data[key])
        if left < 0:
            break
        kept[key] = data[key]
    return kept


class HistoryWriter:
    """Writes the reports that have changed. Only the loop calls it, except for `recall`."""

    def __init__(self, store: HistoryStore, may_write: Callable[[], bool]) -> None:
        self._store = store
        self.recall = store.recall
        self._may_write = may_write
        self._pool = ThreadPoolExecutor(1, "mwatch-history")
        self._written: dict[str, _Written] = {}
        """By UID of the job."""
        self._pending: dict[str, tuple[str, float, RunReport]] = {}
        self._writing: Future[bool] | None = None
        self._taken: dict[str, tuple[str, float, RunReport]] = {}
        self._next_at: float | None = None

    def turn(self, jobs: Sequence[JobMonitor], now: float) -> None:
        if self._next_at is None:
            self._next_at = now + SAVE_SECONDS
        self._collect()
        if not self._may_write() or self._store.is_refused:
            return
        there = {each.kube.uid for each in jobs}
        self._written = {uid: each for uid, each in self._written.items() if uid in there}
        due = next((each for each in jobs if self._is_due(each, now)), None)
        if due is not None:
            self._take(due, now)
        if self._pending and self._writing is None and now >= self._next_at:
            self._start(now)

    def close(self, jobs: Sequence[JobMonitor] = (), now: float = 0.0) -> None:
        """Write the reports that have changed, within seconds."""
        until = time.monotonic() + _CLOSE_SECONDS
        if self._may_write() and not self._store.is_refused:
            for each in jobs:
                if time.monotonic() < until - _CLOSE_SECONDS / 2:
                    self._take(each, now)
            if self._pending and self._writing is None:
                self._start(now)
        self._pool.shutdown(wait=False)
        if self._writing is not None:
            try:
                self._writing.result(max(0.0, until - time.monotonic()))
            except (KubeError, TimeoutError):
                return

    def _is_due(self, job: JobMonitor, now: float) -> bool:
        known = self._written.get(job.kube.uid)
        if known is None or job.assessment is None:
            return known is None and job.assessment is not None
        wait = SAVE_SECONDS if known.mark != _mark(job) else _REST_SECONDS
        return now - known.at >= wait

    def _take(self, job: JobMonitor, now: float) -> None:
        report = job.report(now)
        if report is not None and report.attempts:
            self._pending[job.key] = job.kube.uid, now, report
        self._written[job.kube.uid] = _Written(_mark(job), now)

    def _start(self, now: float) -> None:
        self._taken, self._pending = self._pending, {}
        self._writing = self._pool.submit(self._store.save, self._taken)
        self._next_at = now + SAVE_SECONDS

    def _collect(self) -> None:
        if self._writing is None or not self._writing.done():
            return
        error = self._writing.exception()
        if error is not None and not isinstance(error, KubeError):
            self._writing, self._taken = None, {}
            raise error
        if error is not None or not self._writing.result():
            self._pending = {**self._taken, **self._pending}  # retried with the next write
        self._writing, self._taken = None, {}


def _mark(job: JobMonitor) -> tuple[object, ...]:
    """A value that changes with a new attempt, an incident, an action or the end of the job."""
    engine = job.engine
    newest = engine.incidents[-1] if engine.incidents else None
    state = None if newest is None else (newest.number, newest.acted_at, newest.is_over)
    return job.attempt, state, len(engine.record.acts), job.kube.finished
