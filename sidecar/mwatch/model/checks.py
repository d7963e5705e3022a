# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What checks of a training job read and give: a workload as a manifest has it, a running job as
the cluster shows it, a check, and its outcome.

Of a manifest only the text is known: an argument that a script reads from elsewhere is missing, and
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

Path = tuple[str | int, ...]  # Of a value in a document: keys, and numbers in lists
Tree = Mapping[str, Any]  # A part of a manifest


class OtherObject(NamedTuple):
    """An object of the same stream that is no training job."""

    kind: str
    name: str
    content: Tree
    line: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One kind of pods of the job: `Master`, `Worker`, a replicated job of a JobSet."""

    name: str
    path: Path  # Of its pod template
    count: int | None  # Pods; None: not a number in the text
    restart_policy: str | None
    pod: Tree  # The pod's `spec`
    pod_labels: Tree
    container: Tree | None  # The one that trains; None: it cannot be told
    container_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)  # Literal values of the container
    words: tuple[str, ...] = ()
    """Command and arguments, one after the other, without our own prefix."""
    scripts: tuple[str, ...] = ()
    """The text that a shell gets, and each script of the same stream that it calls."""
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    """The trainer's flags by name; None: a flag without a value, or one that is not known."""
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
    content: Tree  # The whole object
    replicas: tuple[Replica, ...]
    others: tuple[OtherObject, ...] = ()  # What else is in the stream
    lines: Mapping[Path, int] = field(default_factory=dict)
    """Where each key stands in the file, from 1."""

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
        """All of them; None where one count is not known."""
        counts = [each.count for each in self.replicas]
        return None if None in counts or not counts else sum(each or 0 for each in counts)

    def line(self, path: Path) -> int | None:
        """Of the key, or of the nearest one above it that has a line."""
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
    """A claim for a volume, with what becomes of the data when it is deleted."""

    name: str
    storage_class: str
    reclaim: str  # `Delete`, `Retain`; empty: not known


class KeptFields(NamedTuple):
    """What the CRD of the job's kind keeps of an init container."""

    restart_policy: bool
    restart_rules: bool


class JobProgress(NamedTuple):
    """What logs and sidecars told."""

    iteration: int | None = None
    total_iterations: int | None = None
    line_at: float | None = None  # When the last iteration line was printed
    line_seconds: float | None = None  # Usual time between two of them
    line_pods: tuple[str, ...] = ()  # That print them: the last rank's
    read_pods: int = 0  # Whose log or sidecar was read
    step_seconds: float | None = None
    save_interval: int | None = None
    world_size: int | None = None
    attempts: int = 0
    is_done: bool = False
    asked_to_end: bool = False  # An exit that the user gave the trainer
    random_start: str = ""  # The newest attempt began with random weights: what it printed


@dataclass(frozen=True, slots=True)
class Running:
    facts: KubeFacts
    workload: Workload  # The object as the API server has it
    applied: Workload | None = None
    """As somebody gave it to kubectl: what the API server dropped is still in there."""
    progress: JobProgress = field(default_factory=JobProgress)
    rendezvous: Mapping[str, str] = field(default_factory=dict)
    """RDZV_ID by pod, where a pod has one."""
    pods: Mapping[str, PodFacts] = field(default_factory=dict)  # By pod whose sidecar answered
    stored: StoredCheckpoints | None = None
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    """Of the trainer as it runs: by its command line, or as it printed them."""
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments with several values: the data paths."""
    claims: tuple[Claim, ...] | None = None
    services: tuple[str, ...] | None = None  # Names in the namespace
    kept: KeptFields | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Why something could not be looked at."""

    def why(self, what: str, otherwise: str) -> str:
        return self.unavailable.get(what) or otherwise


class CheckLevel(StrEnum):
    ERROR = "error"  # The job will not start, or will not come back
    WARNING = "warning"
    INFO = "info"


class CheckHit(NamedTuple):
    """What a check yields; its name and level come from the check."""

    path: Path  # Where in the manifest
    what: str
    fix: str
    level: CheckLevel | None = None  # Where it differs from the check's own


class Check(NamedTuple):
    id: str
    level: CheckLevel
    about: str  # One line for people: what is looked at
    look: Callable[[Workload], Iterator[CheckHit]]


class Problem(NamedTuple):
    check: str
    level: CheckLevel
    job: str
    what: str
    fix: str
    line: int | None = None


class NotChecked(NamedTuple):
    """The check could not be made: what it needs was not to be seen."""

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
    """A check that was made, or why it was not."""

    check: str
    about: str
    state: CheckState
    found: tuple[Problem, ...] = ()
    why: str = ""
