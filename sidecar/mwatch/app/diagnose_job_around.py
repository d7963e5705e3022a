# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The nodes of a job and the storage classes of its claims, each asked for by its name.

They are no part of a namespace: many people may not read them, and all goes on without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mwatch.app.at_once import Missed, ask_all
from mwatch.kube.access import Access
from mwatch.kube.resources import NODES, STORAGE_CLASSES
from mwatch.model import running as names
from mwatch.model.kube_fields import text
from mwatch.model.kube_node import node_of
from mwatch.model.kube_pod import KubePod
from mwatch.model.running import Claim

_MAX_NODES = 128


def around(
    access: Access, pods: tuple[KubePod, ...], claims: Any, seconds: float
) -> dict[str, Any]:
    """By the names of `model.running`: nodes and claims, or Missed."""
    nodes = sorted({pod.node for pod in pods if pod.node})[:_MAX_NODES]
    bodies = () if isinstance(claims, Missed) else claims
    classes = sorted({text(each, "spec", "storageClassName") for each in bodies} - {""})
    asks: dict[str, Callable[[], Any]] = {}
    for name in nodes:
        asks[f"node/{name}"] = partial(access.get, NODES, None, name)
    for name in classes:
        asks[f"class/{name}"] = partial(access.get, STORAGE_CLASSES, None, name)
    told = ask_all(asks, seconds=seconds)
    found: dict[str, Any] = {names.NODES: _nodes([told[f"node/{name}"] for name in nodes])}
    if not isinstance(claims, Missed):
        policies = {name: _policy(told[f"class/{name}"]) for name in classes}
        found[names.CLAIMS] = tuple(_claim(each, policies) for each in bodies)
    return found


def _nodes(answers: list[Any]) -> Any:
    """A node that is not there any more is none of them."""
    missed = next((each for each in answers if isinstance(each, Missed)), None)
    return missed or tuple(node_of(each.body) for each in answers if each.is_ok)


def _policy(answer: Any) -> str:
    if isinstance(answer, Missed) or not answer.is_ok:
        return ""
    return text(answer.body, "reclaimPolicy") or "Delete"


def _claim(body: Mapping[str, Any], policies: Mapping[str, str]) -> Claim:
    name = text(body, "spec", "storageClassName")
    return Claim(text(body, "metadata", "name"), name, policies.get(name, ""))
