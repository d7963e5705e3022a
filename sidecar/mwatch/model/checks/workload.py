# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A training job as its manifest describes it: what the checks before a start may see.

Only what stands in the text is known. An argument that a script reads from elsewhere is not here,
and a value that a shell works out (`$X`) is here only where the manifest gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Path = tuple[str | int, ...]
"""Of a value in a document: keys, and numbers in lists."""
Tree = Mapping[str, Any]
"""A part of a manifest."""


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
    path: Path
    """Of its pod template."""
    count: int | None
    """Pods; None: not a number in the text."""
    restart_policy: str | None
    pod: Tree
    """The pod's `spec`."""
    pod_labels: Tree
    container: Tree | None
    """The one that trains; None: it cannot be told."""
    container_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Literal values of the container."""
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
    content: Tree
    """The whole object."""
    replicas: tuple[Replica, ...]
    others: tuple[OtherObject, ...] = ()
    """What else is in the stream."""
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
