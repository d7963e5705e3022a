# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Names that one part of the manifest uses and another does not give."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mwatch.checks.pods import named, training
from mwatch.model.check import Check, Level, Seen
from mwatch.model.workload import Replica, Workload

_OPERATOR = re.compile(
    r"MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|PYTHONUNBUFFERED|PET_\w+|JOB_COMPLETION_INDEX"
)
"""What the operator, or the controller of Jobs, adds to a container, behind the user's own."""
_SERVICE = re.compile(r"[A-Z0-9_]+_(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\w+)?)")
"""Of each Service of the namespace; they are there before all others."""
_REFERENCE = re.compile(r"(?<!\$)\$\((\w+)\)", re.ASCII)
_SELECTORS = (
    ("Service", ("spec", "selector")),
    ("PodMonitor", ("spec", "selector", "matchLabels")),
    ("ServiceMonitor", ("spec", "selector", "matchLabels")),
    ("NetworkPolicy", ("spec", "podSelector", "matchLabels")),
    ("PodDisruptionBudget", ("spec", "selector", "matchLabels")),
)


def _selector(workload: Workload) -> Iterator[Seen]:
    if workload.kind != "PyTorchJob":
        return
    for other in workload.others:
        for kind, keys in _SELECTORS:
            labels = _at(other.content, keys) if other.kind == kind else None
            if isinstance(labels, Mapping) and labels.get("job-name") == workload.name:
                yield Seen(
                    ("metadata", "name"),
                    f"{other.kind} {other.name} (line {other.line}) selects job-name="
                    f"{workload.name}, a label that no pod of a PyTorchJob has",
                    "select training.kubeflow.org/job-name",
                )


def _rendezvous(workload: Workload) -> Iterator[Seen]:
    ids = {each.name: each.environment.get("RDZV_ID") for each in training(workload)}
    if len(ids) > 1 and len(set(ids.values())) > 1:
        told = ", ".join(f"{name} {value or 'none'}" for name, value in ids.items())
        yield Seen(
            (*training(workload)[-1].container_path, "env"),
            f"RDZV_ID differs between the pods ({told}): they never meet",
            "give all of them the same",
        )


def _undefined(workload: Workload) -> Iterator[Seen]:
    for each in training(workload):
        if (each.container or {}).get("envFrom"):
            continue  # what is in there is not in this file
        names = [str(one.get("name")) for one in named((each.container or {}).get("env"))]
        for index, variable in enumerate(named((each.container or {}).get("env"))):
            for name in _references(str(variable.get("value", ""))):
                if name not in names[:index]:
                    yield _not_given(each, name, str(variable.get("name")))
        for word in each.words:
            for name in _references(word) if not each.scripts else ():
                if name not in names and not _OPERATOR.fullmatch(name):
                    yield _not_given(each, name, "the command")


def _references(text: str) -> list[str]:
    return [each for each in _REFERENCE.findall(text) if not _SERVICE.fullmatch(each)]


def _not_given(replica: Replica, name: str, where: str) -> Seen:
    return Seen(
        (*replica.container_path, "env"),
        f"{replica.name}: $({name}) in {where} is not defined before it, and stays as it is",
        f"define {name} in env, above",
    )


def _at(content: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


CHECKS = (
    Check("selector", Level.INFO, "selectors name labels that pods have", _selector),
    Check("rendezvous-id", Level.ERROR, "all pods have one RDZV_ID", _rendezvous),
    Check("undefined-variable", Level.WARNING, "variables are defined where used", _undefined),
)
