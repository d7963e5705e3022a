# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A restart of all pods of a job: how it is done, why it is not, and the record of one under way.

The record names the UIDs of the pods that are to go. Whoever takes it up later, after a crash of
the controller too, can reach no other pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from mwatch.model.kube.job import JobKind
from mwatch.model.kube.next_start import NextStart
from mwatch.model.kube.restart_state import RestartState, from_ledger, ledger_word


class Method(StrEnum):
    IN_PLACE = "in-place"
    """Each wrapper ends its trainer and starts the next attempt in the same pod."""
    DELETE_PODS = "delete-pods"  # The job's controller makes new ones
    SUSPEND_RESUME = "suspend-resume"
    """Where a deleted pod counts as a failure: suspended until all are gone, then resumed."""
    FAIL_ONE = "fail-one"  # One pod is enough: the JobSet's own failure policy restarts all of it
    STOP = "stop"  # No restart: the job is suspended until a person has looked


class Reason(StrEnum):
    """Of a refusal."""

    OBSERVING = "observing"
    WRAPPERS_OBSERVE = "wrappers-observe"
    """The job is to be acted on, and its pods were made to observe."""
    PAUSED = "paused"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    DELETING = "deleting"
    MANAGED_ELSEWHERE = "managed-elsewhere"
    STALE_VIEW = "stale-sight"
    NO_PODS = "no-pods"
    SECOND_ACTOR = "second-actor"
    QUEUED = "queued"
    QUOTA = "quota"
    NODES = "nodes"
    RESTART_POLICY = "restart-policy"
    BACKOFF_LIMIT = "backoff-limit"


class GangRefusal(NamedTuple):
    why: Reason
    text: str  # With the fix, where there is one


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
    uid: str  # Of the job
    targets: tuple[Target, ...]  # Pods of the old gang: all of them have to be gone
    first: str = ""  # FAIL_ONE: UID of the pod that is deleted
    notes: tuple[str, ...] = ()  # What could not be checked, or is worth knowing


@dataclass(frozen=True, slots=True)
class GangStep:
    """Written before the first delete."""

    id: str  # Of the incident, or whatever names this restart once
    way: Method
    kind: JobKind
    namespace: str
    name: str
    job_uid: str
    uids: tuple[str, ...]
    began_at: float
    attempt: int  # The one that ends
    first: str = ""
    state: RestartState = RestartState.PLANNED  # Changed by `JobEntry.moved` alone
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
    """`start` is the order beside it. Raises ValueError for an invalid record."""
    state = from_ledger(
        str(body.get("state", "planned")),
        has_order=start is not None,
        may_start=start is not None and start.not_before is not None,
    )
    return msgspec.convert({**body, "state": state.value}, GangStep, strict=False)
