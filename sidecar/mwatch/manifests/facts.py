# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Convert a job of a manifest into a `Workload` for the checks, with command lines and scripts.

A TrainJob is merged with its runtime into one pod template, as the operator does in the cluster,
but only as far as the checks need it: command, arguments, environment, image, resources, and
volumes of its overrides. A runtime that is not in the same file is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mwatch.manifests import containers, kinds, shell_text
from mwatch.manifests.kinds import Template
from mwatch.model.checks import OtherObject, Path, Replica, Tree, Workload
from mwatch.model.kube.fields import items, mapping, part

NODE = "node"
"""The name that trainer v2 requires for the replicated job that trains and for its container."""
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
_OVERRIDES = (("podTemplateOverrides", ("spec",)), ("podSpecOverrides", ()))
"""The override fields of trainer 2.1 and 2.0, and the path of the pod spec below them."""
_POD_NAMES = {kinds.PYTORCHJOB: "pytorch", kinds.TRAINJOB: NODE}
_MAX_FILES = 8


def workload_of(
    content: Tree,
    others: Sequence[OtherObject] = (),
    lines: Mapping[Path, int] | None = None,
    container: str | None = None,
) -> Workload | None:
    """None for an object that is not a training job."""
    kind = kinds.kind_of(content)
    if kind is None or kind in kinds.RUNTIMES:
        return None
    files = {each.name: each.content for each in others if each.kind == "ConfigMap"}
    wanted = container or _POD_NAMES.get(kind)
    runtime = part(content, "spec", "runtimeRef", "name")
    runtimes = (
        each.content for each in others if each.kind in kinds.RUNTIMES and each.name == runtime
    )
    found = (
        [_joined(content, next(runtimes, None))]
        if kind == kinds.TRAINJOB
        else kinds.templates(content)
    )
    metadata, namespace = mapping(content, "metadata"), part(content, "metadata", "namespace")
    return Workload(
        kind=kind,
        name=str(metadata.get("name") or metadata.get("generateName") or ""),
        namespace=None if namespace is None else str(namespace),
        content=content,
        replicas=tuple(_replica(each, wanted, files) for each in found),
        others=tuple(others),
        lines=lines or {},
    )


def _replica(template: Template, wanted: str | None, files: Mapping[str, Tree]) -> Replica:
    spec = template.spec
    container = containers.trainer_of(spec, wanted)
    base = Replica(
        name=template.name,
        path=template.path,
        count=template.pods,
        restart_policy=template.restart_policy,
        pod=spec,
        pod_labels=mapping(template.content, "metadata", "labels"),
        container=container,
        container_path=(*template.path, "spec", "containers"),
    )
    return base if container is None else _with_command(base, container, files)


def _with_command(base: Replica, container: Tree, files: Mapping[str, Tree]) -> Replica:
    listed = containers.listed(base.pod.get("containers"))
    index = next(number for number, each in enumerate(listed) if each is container)
    words = containers.command_of(container)
    environment = containers.environment_of(container)
    scripts = _scripts(words, base.pod, container, files)
    text = "\n".join(scripts)
    known = shell_text.variables(text, environment)
    read = shell_text.words_of(text) if scripts else list(words)
    return replace(
        base,
        container_path=(*base.container_path, index),
        environment=environment,
        words=words,
        scripts=scripts,
        arguments=shell_text.arguments(read, known, is_branched=shell_text.has_branches(text)),
        is_wrapped=containers.is_wrapped(container),
    )


def _scripts(
    words: Sequence[str], pod: Tree, container: Tree, files: Mapping[str, Tree]
) -> tuple[str, ...]:
    """The inline shell script, then each script that it starts and that is in a ConfigMap."""
    text = shell_text.shell_script(words)
    file = None if text is not None else shell_text.script_file(words)
    parts = [] if text is None else [text]
    wanted = [file] if file is not None else shell_text.called_files(text or "")
    for path in wanted[:_MAX_FILES]:
        found = _mounted_script(path, pod, container, files)
        parts += [] if found is None else [found]
    return tuple(parts)


def _mounted_script(path: str, pod: Tree, container: Tree, files: Mapping[str, Tree]) -> str | None:
    mount = containers.mount_above(container, path)
    volume = part(mount, "name")
    volumes = (each for each in items(pod, "volumes") if volume and each.get("name") == volume)
    source = part(next(volumes, None), "configMap", "name")
    found = mapping(files.get(str(source)), "data").get(path.rsplit("/", 1)[-1])
    return None if found is None else str(found)


def _joined(content: Tree, runtime: Tree | None) -> Template:
    base = node_template(runtime) if runtime is not None else None
    spec: dict[str, Any] = dict(base.spec) if base is not None else {}
    container = next((dict(each) for each in items(spec, "containers") if _is_node(each)), {})
    trainer = mapping(content, "spec", "trainer")
    container["name"] = NODE
    container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
    if isinstance(trainer.get("resourcesPerNode"), Mapping):
        container["resources"] = trainer["resourcesPerNode"]
    container["env"] = [*items(container, "env"), *items(trainer, "env")]
    for _, override in overrides(content):
        spec["volumes"] = [*items(spec, "volumes"), *items(override, "volumes")]
        for each in (each for each in items(override, "containers") if _is_node(each)):
            container["env"] += items(each, "env")
            mounts = items(each, "volumeMounts")
            container["volumeMounts"] = [*items(container, "volumeMounts"), *mounts]
    spec["containers"] = [container]
    nodes = kinds.whole(trainer.get("numNodes"))
    policy = part(runtime, "spec", "mlPolicy", "numNodes")
    return Template(
        NODE,
        ("spec", "trainer"),
        ("spec", "trainer"),
        {"spec": spec},
        nodes or kinds.whole(policy, default=1),
        None if base is None else base.restart_policy,
    )


def overrides(content: Tree) -> Iterator[tuple[tuple[str, ...], Tree]]:
    for key, below in _OVERRIDES:
        for index, each in enumerate(items(content, "spec", key)):
            found = part(each, *below)
            if isinstance(found, Mapping):
                yield ("spec", key, f"[{index}]", *below), found


def node_template(runtime: Tree) -> Template | None:
    found = kinds.templates(runtime)
    return next((each for each in found if each.name == NODE), found[0] if found else None)


def _is_node(container: Tree) -> bool:
    return container.get("name") == NODE
