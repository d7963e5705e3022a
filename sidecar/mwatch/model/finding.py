# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a detector (what is wrong, since when, which rank or node is the culprit), and the
verdict on a job as `--json` shows it.

A finding asserts a state and names its evidence. It does not say what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from mwatch.model.cause import Cause
from mwatch.model.observation import HERE, Source
from mwatch.model.stacks import StackGroup

if TYPE_CHECKING:
    from mwatch.model.job import Job
    from mwatch.model.settings import Settings


MAX_EVIDENCE = 8
LOG_END = "log_end"
"""Detector name of findings at the end of a recorded log. No detector of a live job has it."""


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"  # open a ticket
    CRITICAL = "critical"  # page: the run is lost or losing


class CulpritState(StrEnum):
    NEVER_JOINED = "never_joined"
    STUCK = "stuck"
    SILENT = "silent"
    BEHIND = "behind"
    ALL_EQUAL = "all_equal"
    OUT_OF_STEP = "out_of_step"


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rank, pod or node at fault; None: unknown. ALL_EQUAL means there is no single culprit."""

    rank: int | None = None
    state: CulpritState | None = None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    pod: str | None = None
    node: str | None = None
    gpu_uuid: str | None = None
    xid: int | None = None
    place: str | None = None  # where its code stands: `pretrain.py:32 in train_step`
    file: str | None = None  # the log that shows it, if several were read and the pod is unknown

    def label(self, between: str) -> str | None:
        """Return a text such as `rank 3 (tp 1 pp 0), pod worker-1, node a-17: behind, at
        train.py:32 in step`; None: no culprit is known. `between` separates the coordinates."""
        places = between.join(f"{name} {value}" for name, value in self.coordinates.items())
        parts = [
            None if self.rank is None else f"rank {self.rank}" + f" ({places})" * bool(places),
            self.pod and self.pod != HERE and f"pod {self.pod}",
            self.file and f"file {self.file}",
            self.node and f"node {self.node}",
            self.gpu_uuid and f"GPU {self.gpu_uuid}",
            None if self.xid is None else f"Xid {self.xid}",
        ]
        named = ", ".join(part for part in parts if part)
        state = self.state and self.state.value.replace("_", " ")
        place = self.place and f"at {self.place}"
        how = ", ".join(part for part in (state, place) if part)
        return ": ".join(part for part in (named, how) if part) or None


@dataclass(frozen=True, slots=True)
class Evidence:
    file: str | None
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    detector: str
    cause: Cause
    severity: Severity
    summary: str  # one sentence for the on-call engineer
    since_time: float | None = None
    since_iteration: int | None = None  # the first iteration that the first bad line covers
    confidence: float = 1.0
    culprit: Culprit | None = None
    evidence: tuple[Evidence, ...] = ()
    cannot_heal: bool = False
    """Proof that waiting is useless: process dead or stopped, fatal Xid, never joined, desync."""
    is_guess: bool = False
    """The silence exceeds a limit that is a guess: too little is known of this job's pace."""
    may_take_seconds: float = 0.0
    """Duration of an evaluation or a save that is due here, which looks like a stall if the line
    before it was lost."""
    comes_again: bool = False  # the same happens again after a restart
    fault: str | None = None  # catalogue entry of the root cause
    fingerprint: str = ""
    """Equal for the same problem in another attempt: no numbers, ranks or times."""
    stacks: tuple[StackGroup, ...] = ()  # where all ranks stand, the largest group first
    next_step: str = ""  # advice for a person, if it is more precise than that of the cause


class Detector(NamedTuple):
    name: str
    needs: frozenset[Source]  # sources of which one must be up; empty: the detector needs none
    detect: Callable[[Job, Settings], list[Finding]]
    runbook: str  # file name of the page in `runbooks/`, without `.md`


@dataclass(frozen=True, slots=True)
class Verdict:
    cause: Cause
    summary: str
    since_iteration: int | None = None  # the first iteration that the first bad line covers
    since_time: float | None = None
    culprit: Culprit | None = None
    confidence: float = 1.0  # from 0 (nothing was observed) to 1
