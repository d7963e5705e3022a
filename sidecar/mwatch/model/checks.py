# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs and results of the checks of a training job: a workload from a manifest, a running job
from the cluster, a check, and its outcome.

Only the text of a manifest is known: an argument that a script reads from elsewhere is missing, and
a value that a shell computes (`$X`) is known only if the manifest sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from mwatch.model.kube.facts import KubeFacts
from mwatch.model.observation import StoredCheckpoints
from mwatch.model.snapshot.pod import PodFacts

Path = tuple[str | int, ...]  # keys and list indexes of a value in a document
Tree = Mapping[str, Any]  # a part of a manifest


class OtherObject(NamedTuple):
    """Another object in the same file that is not a training job."""

    kind: str
    name: str
    content: Tree
    line: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One kind of pod of the job: `Master`, `Worker`, a replicated job of a JobSet."""

    name: str
    path: Path  # of its pod template
    count: int | None  # None: not a number in the text
    restart_policy: str | None
    pod: Tree  # the pod's `spec`
    pod_labels: Tree
    container: Tree | None  # the one that trains; None: unclear
    container_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)  # literal values of the container
    words: tuple[str, ...] = ()  # command and arguments, without the mwatch prefix
    scripts: tuple[str, ...] = ()
    """The text that is passed to a shell, and each script in the same file that it calls."""
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    """The trainer's flags by name; None: without a value, or the value is not known."""
    is_wrapped: bool = False

    def text(self, *flags: str) -> str | None:
        return next((self.arguments[each] for each in flags if self.arguments.get(each)), None)

    def number(self, *flags: str) -> int | None:
        value = self.text(*flags)
        return int(value) if value is not None and value.isascii() and value.isdigit() else None


@dataclass(frozen=True, slots=True)
class Workload:
    kind: str
    name: str
    namespace: str | None
    content: Tree  # the whole object
    replicas: tuple[Replica, ...]
    others: tuple[OtherObject, ...] = ()  # other objects in the file
    lines: Mapping[Path, int] = field(default_factory=dict)  # line of each key in the file, from 1

    @property
    def labels(self) -> Tree:
        return self._of_metadata("labels")

    @property
    def annotations(self) -> Tree:
        return self._of_metadata("annotations")

    @property
    def spec(self) -> Tree:
        found = self.content.get("spec")
        return found if isinstance(found, Mapping) else {}

    @property
    def pods(self) -> int | None:
        """Number of pods; None: the count of a replica is not known."""
        counts = [each.count for each in self.replicas]
        return None if None in counts or not counts else sum(each or 0 for each in counts)

    def line(self, path: Path) -> int | None:
        """Line of the key, or of the nearest key above it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None

    def _of_metadata(self, key: str) -> Tree:
        metadata = self.content.get("metadata")
        found = metadata.get(key) if isinstance(metadata, Mapping) else None
        return found if isinstance(found, Mapping) else {}


CRD = "crd"
CLAIMS = "claims"
NODES = "nodes"
SERVICES = "services"
LOGS = "logs"
VOLUME = "volume"


class Claim(NamedTuple):
    """A PersistentVolumeClaim, and what happens to its data when it is deleted."""

    name: str
    storage_class: str
    reclaim: str  # `Delete`, `Retain`; empty: unknown


class JobProgress(NamedTuple):
    """Progress of a running job, from logs and sidecars."""

    iteration: int | None = None
    total_iterations: int | None = None
    line_at: float | None = None  # when the last iteration line was printed
    line_seconds: float | None = None  # usual time between two lines
    line_pods: tuple[str, ...] = ()  # pods that print lines: the last rank's
    read_pods: int = 0  # pods whose log or sidecar was read
    step_seconds: float | None = None
    save_interval: int | None = None
    world_size: int | None = None
    attempts: int = 0
    is_done: bool = False
    asked_to_end: bool = False  # an exit that the user configured
    random_start: str = ""  # what the newest attempt printed if it began with random weights


@dataclass(frozen=True, slots=True)
class Running:
    facts: KubeFacts
    workload: Workload  # the object from the API server
    applied: Workload | None = None  # as given to kubectl, with what the API server dropped
    progress: JobProgress = field(default_factory=JobProgress)
    rendezvous: Mapping[str, str] = field(default_factory=dict)  # RDZV_ID by pod
    pods: Mapping[str, PodFacts] = field(default_factory=dict)  # by pod whose sidecar answered
    stored: StoredCheckpoints | None = None
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    """Arguments of the running trainer: from its command line, or as printed."""
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments with several values: the data paths."""
    claims: tuple[Claim, ...] | None = None
    services: tuple[str, ...] | None = None  # names in the namespace
    keeps_sidecar: bool | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Why something could not be read, by name."""

    def why(self, what: str, otherwise: str) -> str:
        return self.unavailable.get(what) or otherwise


class CheckLevel(StrEnum):
    ERROR = "error"  # the job will not start, or will not recover
    WARNING = "warning"
    INFO = "info"


class CheckHit(NamedTuple):
    """A problem that a check found; its name and level come from the check."""

    path: Path  # in the manifest
    what: str
    fix: str
    level: CheckLevel | None = None  # if it differs from the check's own


class Check(NamedTuple):
    id: str
    level: CheckLevel
    about: str  # one line for people: what is checked
    look: Callable[[Workload], Iterator[CheckHit]]


class Problem(NamedTuple):
    check: str
    level: CheckLevel
    job: str
    what: str
    fix: str
    line: int | None = None


class NotChecked(NamedTuple):
    """The check could not run because its input was not available."""

    why: str


class RunningCheck(NamedTuple):
    id: str
    level: CheckLevel
    about: str
    look: Callable[[Running], list[CheckHit] | NotChecked]


class CheckState(StrEnum):
    FOUND = "found"
    FINE = "fine"
    NOT_OBSERVABLE = "not observable"


class Outcome(NamedTuple):
    """The result of a check, or why it did not run."""

    check: str
    about: str
    state: CheckState
    found: tuple[Problem, ...] = ()
    why: str = ""
