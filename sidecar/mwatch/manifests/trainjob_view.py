# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A TrainJob seen as the pod template that its runtime and its own wishes make together.

The operator joins them in the cluster; here only what matters for checks is joined: command,
arguments, environment, image, resources, and volumes of its overrides. A runtime that is not in
the same stream is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mwatch.manifests import kinds
from mwatch.manifests.containers import named
from mwatch.manifests.kinds import Template
from mwatch.model.checks.workload import Tree

NODE = "node"
"""What trainer v2 calls both the replicated job that trains and its container."""
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_OVERRIDES = (("podTemplateOverrides", ("spec",)), ("podSpecOverrides", ()))


def trainer_of(content: Tree) -> Tree:
    found = kinds.at(content, ("spec", "trainer"))
    return found if isinstance(found, Mapping) else {}


def joined(content: Tree, runtime: Tree | None) -> Template:
    base = node_template(runtime) if runtime is not None else None
    spec: dict[str, Any] = dict(base.spec) if base is not None else {}
    container = next((dict(each) for each in named(spec.get("containers")) if _is_node(each)), {})
    trainer = trainer_of(content)
    container["name"] = NODE
    container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    if isinstance(trainer.get("resourcesPerNode"), Mapping):
        container["resources"] = trainer["resourcesPerNode"]
    container["env"] = [*named(container.get("env")), *named(trainer.get("env"))]
    for _, override in overrides(content):
        spec["volumes"] = [*named(spec.get("volumes")), *named(override.get("volumes"))]
        for each in (each for each in named(override.get("containers")) if _is_node(each)):
            container["env"] += named(each.get("env"))
            mounts = named(each.get("volumeMounts"))
            container["volumeMounts"] = [*named(container.get("volumeMounts")), *mounts]
    spec["containers"] = [container]
    nodes = kinds.whole(trainer.get("numNodes"))
    policy = kinds.at(runtime, ("spec", "mlPolicy", "numNodes"))
    return Template(
        NODE,
        ("spec", "trainer"),
        ("spec", "trainer"),
        {"spec": spec},
        nodes or kinds.whole(policy, default=1),
        None if base is None else base.restart_policy,
    )


def overrides(content: Tree) -> Iterator[tuple[tuple[str, ...], Tree]]:
    """Each with its place; of the forms of trainer 2.0 and 2.1."""
    for key, below in _OVERRIDES:
        for index, each in enumerate(named(kinds.at(content, ("spec", key)))):
            found = kinds.at(each, below)
            if isinstance(found, Mapping):
                yield ("spec", key, f"[{index}]", *below), found


def node_template(runtime: Tree) -> Template | None:
    """The replicated job that trains."""
    found = kinds.templates(runtime)
    return next((each for each in found if each.name == NODE), found[0] if found else None)


def _is_node(container: Tree) -> bool:
    return container.get("name") == NODE
