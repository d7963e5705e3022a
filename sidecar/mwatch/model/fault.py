# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One entry of the fault catalogue: what a message means and what fixes it.

An entry never decides about the action on a job. `role` shows whether a line may be the root cause:
a collective timeout is a `cascade`, because the rank that prints it is usually a victim.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mwatch.model.cause import Cause


class Role(StrEnum):
    ROOT = "root"
    CASCADE = "cascade"
    CONFIRMATION = "confirmation"
    BENIGN = "benign"


class Blame(StrEnum):
    GPU = "gpu"
    NODE = "node"
    FABRIC = "fabric"
    STORAGE = "storage"
    JOB = "job"
    USER = "user"


class RestartHelps(StrEnum):
    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    ELSEWHERE = "elsewhere"  # on another node


class AvoidNode(StrEnum):
    YES = "yes"
    NO = "no"
    REPEAT = "repeat"  # if it recurs on the same GPU within a day


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    id: str
    title: str
    patterns: tuple[str, ...]
    role: Role
    blame: Blame
    restart_helps: RestartHelps
    avoid_node: AvoidNode
    fix: str
    runbook: str
    source: str
    examples: tuple[str, ...]
    xid: int | None
    cause: Cause | None  # None: that of its family, by `runbook`
    origin: str  # `file:line` of the entry, for error messages and `mwatch faults ID`

    @property
    def fails_again(self) -> bool:
        return self.restart_helps is RestartHelps.NO
