# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The policies that jobs name (`mwatch.dev/policy`): ConfigMaps with TOML, read by a thread.

For a policy that is missing or invalid the default is used, with an Event on the job. While the
API server does not answer, the last version stays in use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.config import loader
from mwatch.errors import InputError
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, Unavailable
from mwatch.kube.events import Events
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.kube.fields import text_map
from mwatch.model.kube.job import POLICY, KubeJob
from mwatch.model.settings import Settings

READ_SECONDS = 30.0
KEY = "policy.toml"
REASON = "PolicyRefused"


class Policy(NamedTuple):
    settings: Settings
    problem: str = ""


class Policies:
    def __init__(
        self, access: Access, namespace: str, usual: Settings, events: Events | None = None
    ) -> None:
        """`usual`: for a job that names no policy, or an invalid one."""
        self._access = access
        self._namespace = namespace
        self._usual = Policy(usual)
        self._events = events
        self._known: dict[str, Policy] = {}
        self._wanted: dict[str, tuple[KubeJob, ...]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._stop = threading.Event()
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mwatch-policies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._soon.set()
        if self._thread.is_alive():
            self._thread.join(0.5)

    def want(self, jobs: Iterable[KubeJob]) -> None:
        wanted: dict[str, tuple[KubeJob, ...]] = {}
        for job in jobs:
            if name := job.annotations.get(POLICY, ""):
                wanted[name] = (*wanted.get(name, ()), job)
        self._wanted = wanted
        if any(name not in self._known for name in wanted):
            self._soon.set()

    def of(self, job: KubeJob) -> Policy | None:
        """None: the named policy has not been read yet."""
        name = job.annotations.get(POLICY, "")
        return self._known.get(name) if name else self._usual

    def read(self) -> None:
        for name, jobs in self._wanted.items():
            try:
                found = self._read(name)
            except Unavailable:
                continue  # keep the last version
            except KubeError as error:
                found = self._usual._replace(problem=f"ConfigMap {name}: {error}")
            self._known = {**self._known, name: found}
            if found.problem:
                self._report(jobs, found.problem)
        self._known = {name: each for name, each in self._known.items() if name in self._wanted}

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._soon.wait(READ_SECONDS)
            self._soon.clear()
            if not self._stop.is_set():
                self.read()
                self._stop.wait(1.0)  # a policy that stays missing is not read in a tight loop

    def _read(self, name: str) -> Policy:
        answer = self._access.get(CONFIG_MAPS, self._namespace, name)
        if not answer.is_ok:
            return self._usual._replace(problem=f"there is no ConfigMap {name}")
        data = text_map(answer.body, "data")
        key = KEY if KEY in data or len(data) != 1 else next(iter(data))
        if key not in data:
            return self._usual._replace(problem=f"ConfigMap {name} has no key {KEY}")
        try:
            usual = self._usual.settings
            return Policy(loader.parse(data[key], usual, f"ConfigMap {name}, {key}"))
        except InputError as error:
            return self._usual._replace(problem=str(error))

    def _report(self, jobs: Iterable[KubeJob], problem: str) -> None:
        for job in jobs:
            if self._events is not None and (job.uid, problem) not in self._reported:
                self._reported.add((job.uid, problem))
                self._events.emit(job, REASON, f"{problem}; the usual one is used", is_warning=True)
        if len(self._reported) > 1024:
            self._reported.clear()
