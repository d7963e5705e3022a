# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory behind the real `Access`: objects with UIDs and versions, and failed calls.

Preconditions (UID, resource version) are those of the real API server, which `tests/cluster` tests.
Pods that are deleted stay until `kubelet`; `job_controller` makes new ones of the same names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from mwatch.kube.access import Access, Answer, CallLimits, CallOutcome
from mwatch.kube.errors import Unavailable
from mwatch.kube.resources import PODS, PYTORCH_JOBS
from mwatch.model.kube.pod import JOB_NAME
from support.builders.kube import ACT, body, template

NAMESPACE, JOB, JOB_UID = "ns", "train", "job-uid"
JOB_PATH = PYTORCH_JOBS.path(NAMESPACE, JOB)
POD_PATHS = [PODS.path(NAMESPACE, f"{JOB}-{index}") for index in range(2)]


class Crash(BaseException):
    """The controller is killed here."""


class FakeCluster:
    def __init__(self, policy: str, clock: Callable[[], float]) -> None:
        """`policy`: restartPolicy of the PyTorchJob; with `Never` a restart suspends it."""
        self.objects: dict[str, dict[str, Any]] = {}
        self.clock = clock
        self._version = 0
        self._pods = 0
        group = {"replicas": 1, "restartPolicy": policy, "template": template()}
        spec = {"pytorchReplicaSpecs": {"Master": group, "Worker": group}, "runPolicy": {}}
        self.put(JOB_PATH, body("PyTorchJob", spec, annotations=dict(ACT)))
        self.job_controller()

    @property
    def is_suspended(self) -> bool:
        return bool(self.objects[JOB_PATH]["spec"]["runPolicy"].get("suspend"))

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [self.objects[path] for path in POD_PATHS if path in self.objects]

    def put(self, path: str, value: Mapping[str, Any]) -> dict[str, Any]:
        self._version += 1
        own = {"uid": f"uid-{self._version}", "name": path.rpartition("/")[2]}
        about = {**own, **value.get("metadata", {}), "resourceVersion": str(self._version)}
        self.objects[path] = made = {**value, "metadata": about}
        return made

    def kubelet(self) -> None:
        """Pods that were told to end are gone."""
        for path in POD_PATHS:
            if path in self.objects and "deletionTimestamp" in self.objects[path]["metadata"]:
                del self.objects[path]

    def job_controller(self) -> None:
        for path in POD_PATHS:
            name = path.rpartition("/")[2]
            if self.is_suspended and path in self.objects:
                self._terminate(path)
            elif not self.is_suspended and path not in self.objects:
                self._pods += 1
                owner = {"uid": JOB_UID, "controller": True}
                about = {
                    "name": name, "namespace": NAMESPACE, "uid": f"pod-{self._pods}",
                    "labels": {JOB_NAME: JOB}, "ownerReferences": [owner],
                }  # fmt: skip
                status = {"phase": "Running", "podIP": "127.0.0.1"}
                spec = {**template()["spec"], "nodeName": "n1"}
                self.put(path, {"metadata": about, "spec": spec, "status": status})

    def answer(
        self, method: str, path: str, query: Mapping[str, Any], given: Mapping[str, Any]
    ) -> Answer:
        if method == "GET":
            return self._read(path, query)
        if method == "POST":
            path = f"{path}/{given['metadata']['name']}"
            if path in self.objects:
                return Answer(CallOutcome.CONFLICT, {}, "already exists")
            return Answer(CallOutcome.OK, self.put(path, given))
        known = self.objects.get(path)
        if known is None:
            return Answer(CallOutcome.MISSING, {}, "not found")
        wanted = given.get("preconditions") or given.get("metadata") or {}
        for key in ("uid", "resourceVersion"):
            if wanted.get(key, known["metadata"][key]) != known["metadata"][key]:
                return Answer(CallOutcome.CONFLICT, {}, f"another {key}")
        if method == "DELETE":
            self._terminate(path)
            return Answer(CallOutcome.OK, {})
        changed = given if method == "PUT" else _merged(known, given)
        metadata = {**changed["metadata"], "uid": known["metadata"]["uid"]}
        return Answer(CallOutcome.OK, self.put(path, {**changed, "metadata": metadata}))

    def _read(self, path: str, query: Mapping[str, Any]) -> Answer:
        if path in self.objects:
            return Answer(CallOutcome.OK, self.objects[path])
        if "limit" not in query:
            return Answer(CallOutcome.MISSING, {}, "not found")
        key, _, value = str(query.get("labelSelector", "")).partition("=")
        found = [
            each
            for where, each in self.objects.items()
            if where.rpartition("/")[0] == path
            and (not key or each["metadata"].get("labels", {}).get(key) == value)
        ]
        return Answer(CallOutcome.OK, {"items": found, "metadata": {}})

    def _terminate(self, path: str) -> None:
        known = self.objects[path]
        if "deletionTimestamp" not in known["metadata"]:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))
            about = {**known["metadata"], "deletionTimestamp": stamp}
            self.put(path, {**known, "metadata": about})


def _merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch."""
    found = dict(before)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping):
            inside = found.get(key)
            found[key] = _merged(inside if isinstance(inside, Mapping) else {}, value)
        else:
            found[key] = value
    return found


class ClusterAccess(Access):
    """One process' way to it. `calls_left`: before that call it is killed, or not answered."""

    def __init__(
        self, cluster: FakeCluster, before: Callable[[str, str, Mapping[str, Any]], None]
    ) -> None:
        """`before`: sees each change before it is made."""
        self.cluster = cluster
        self.calls = 0
        self.answered_at = None
        self.calls_left: int | None = None
        self.is_applied = False
        """Whether the change of that last call is made."""
        self.is_killed = False
        """By that call; else it fails."""
        self._before = before

    @property
    def namespace(self) -> str:
        return NAMESPACE

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        accept: str = "application/json",
        limits: CallLimits | None = None,
    ) -> Answer:
        self.calls += 1
        if self.calls_left == 0:
            if self.is_applied:
                self._made(method, path, query, body)
            if self.is_killed:
                raise Crash
            self.calls_left = None
            raise Unavailable("the API server does not answer")
        if self.calls_left is not None:
            self.calls_left -= 1
        return self._made(method, path, query, body)

    def _made(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
    ) -> Answer:
        if method != "GET":
            self._before(method, path, body or {})
        return self.cluster.answer(method, path, query or {}, body or {})
