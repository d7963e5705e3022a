# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What limits how many pods may be: a ResourceQuota, and a Workload in a queue of Kueue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mwatch.model.kube.fields import Object, condition, is_true, items, part, quantities, text
from mwatch.model.kube.pod import controller_uid


class ScopeRule(NamedTuple):
    scope: str
    operator: str
    values: tuple[str, ...]


class KubeQuota(NamedTuple):
    name: str
    hard: Mapping[str, float]
    used: Mapping[str, float]
    scopes: tuple[ScopeRule, ...]


class KubeWorkload(NamedTuple):
    """Kueue's own record of a job."""

    name: str
    uid: str
    resource_version: str
    owner: str
    """UID of the job."""
    is_active: bool
    is_admitted: bool
    evicted: str
    """Reason, such as `Preempted` or `PodsReadyTimeout`; empty: it is not."""
    evicted_text: str


def quota_of(body: Object) -> KubeQuota:
    plain = part(body, "spec", "scopes")
    scopes = [ScopeRule(str(each), "Exists", ()) for each in (plain or ())]
    for each in items(body, "spec", "scopeSelector", "matchExpressions"):
        values = tuple(map(str, each.get("values") or ()))
        scopes.append(ScopeRule(text(each, "scopeName"), text(each, "operator"), values))
    return KubeQuota(
        text(body, "metadata", "name"),
        quantities(body, "status", "hard") or quantities(body, "spec", "hard"),
        quantities(body, "status", "used"),
        tuple(scopes),
    )


def workload_of(body: Object) -> KubeWorkload:
    evicted = condition(body, "Evicted") if is_true(body, "Evicted") else None
    return KubeWorkload(
        text(body, "metadata", "name"),
        text(body, "metadata", "uid"),
        text(body, "metadata", "resourceVersion"),
        controller_uid(body),
        part(body, "spec", "active") is not False,
        is_true(body, "Admitted"),
        text(evicted, "reason"),
        text(evicted, "message")[:500],
    )
