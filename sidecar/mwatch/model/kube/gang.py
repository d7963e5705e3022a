# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A restart of all pods of a job: the method, reasons for a refusal, and the record of one under
way.

The record has the UIDs of the pods to remove, so a controller that continues it after a crash
cannot touch any other pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from mwatch import json_codec
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.next_start import NextStart
from mwatch.model.kube.restart_state import RestartState, from_ledger, ledger_word


class Method(StrEnum):
    IN_PLACE = "in-place"
    """Each wrapper ends its trainer and starts the next attempt in the same pod."""
    DELETE_PODS = "delete-pods"  # the job's controller makes new ones
    SUSPEND_RESUME = "suspend-resume"
    """If a deleted pod counts as a failure: suspend until all are gone, then resume."""
    FAIL_ONE = "fail-one"  # delete one pod: the JobSet's own failure policy restarts all
    STOP = "stop"  # no restart: the job stays suspended until a person resumes it


class Reason(StrEnum):
    """Why a restart is refused."""

    OBSERVING = "observing"
    WRAPPERS_OBSERVE = "wrappers-observe"
    """The job is in mode `act`, but its pods were created in mode `observe`."""
    PAUSED = "paused"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    DELETING = "deleting"
    MANAGED_ELSEWHERE = "managed-elsewhere"
    STALE_VIEW = "stale-view"
    NO_PODS = "no-pods"
    SECOND_ACTOR = "second-actor"
    QUEUED = "queued"
    QUOTA = "quota"
    NODES = "nodes"
    RESTART_POLICY = "restart-policy"
    BACKOFF_LIMIT = "backoff-limit"


class GangRefusal(NamedTuple):
    why: Reason
    text: str  # with the fix, if there is one


class Target(NamedTuple):
    name: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class GangPlan:
    way: Method
    kind: JobKind
    namespace: str
    name: str
    uid: str  # of the job
    targets: tuple[Target, ...]  # pods of the old gang, which must all be gone
    first: str = ""  # FAIL_ONE: UID of the pod to delete
    notes: tuple[str, ...] = ()  # what could not be checked, or is worth knowing


@dataclass(frozen=True, slots=True)
class GangStep:
    """The record of a restart under way, written before the first pod is deleted."""

    id: str  # of the incident or the request
    way: Method
    kind: JobKind
    namespace: str
    name: str
    job_uid: str
    uids: tuple[str, ...]
    began_at: float
    attempt: int  # the one that ends
    first: str = ""
    state: RestartState = RestartState.PLANNED  # changed by `JobEntry.moved` only
    outcome: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind.value}/{self.namespace}/{self.name}"


def step_of(plan: GangPlan, *, id: str, attempt: int, at: float) -> GangStep:
    return GangStep(
        id, plan.way, plan.kind, plan.namespace, plan.name, plan.uid,
        tuple(each.uid for each in plan.targets), at, attempt, plan.first,
    )  # fmt: skip


def to_json(step: GangStep) -> dict[str, Any]:
    return {**msgspec.to_builtins(step), "state": ledger_word(step.state)}


def from_json(body: Mapping[str, Any], start: NextStart | None = None) -> GangStep:
    """Read a record; `start` is the order beside it. Raises ValueError for an invalid record."""
    state = from_ledger(
        str(body.get("state", "planned")),
        has_order=start is not None,
        may_start=start is not None and start.not_before is not None,
    )
    return json_codec.convert({**body, "state": state.value}, GangStep, strict=False)
