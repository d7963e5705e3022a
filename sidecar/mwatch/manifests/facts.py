# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From a stream of documents to the jobs in it, as the checks see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mwatch.manifests import containers, kinds, shell_text
from mwatch.manifests.kinds import Template
from mwatch.manifests.trainjob_view import NODE, joined
from mwatch.model.checks.workload import OtherObject, Path, Replica, Tree, Workload

_POD_NAMES = {kinds.PYTORCHJOB: "pytorch", kinds.TRAINJOB: NODE}
_MAX_FILES = 8


def workload_of(
    content: Tree,
    others: Sequence[OtherObject] = (),
    lines: Mapping[Path, int] | None = None,
    container: str | None = None,
) -> Workload | None:
    """None for an object that is no training job."""
    kind = kinds.kind_of(content)
    if kind is None or kind in kinds.RUNTIMES:
        return None
    files = {each.name: each.content for each in others if each.kind == "ConfigMap"}
    wanted = container or _POD_NAMES.get(kind)
    found = (
        [joined(content, _runtime_of(content, others))]
        if kind == kinds.TRAINJOB
        else kinds.templates(content)
    )
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    return Workload(
        kind=kind,
        name=str(metadata.get("name") or metadata.get("generateName") or ""),
        namespace=_text(metadata.get("namespace")),
        content=content,
        replicas=tuple(_replica(each, wanted, files) for each in found),
        others=tuple(others),
        lines=lines or {},
    )


def _replica(template: Template, wanted: str | None, files: Mapping[str, Tree]) -> Replica:
    spec = template.spec
    container = containers.trainer_of(spec, wanted)
    labels = kinds.at(template.content, ("metadata", "labels"))
    base = Replica(
        name=template.name,
        path=template.path,
        count=template.pods,
        restart_policy=template.restart_policy,
        pod=spec,
        pod_labels=labels if isinstance(labels, Mapping) else {},
        container=container,
        container_path=(*template.path, "spec", "containers"),
    )
    return base if container is None else _with_command(base, container, files)


def _with_command(base: Replica, container: Tree, files: Mapping[str, Tree]) -> Replica:
    items = containers.listed(base.pod.get("containers"))
    index = next(number for number, each in enumerate(items) if each is container)
    words = containers.words_of_container(container)
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
    """The shell's text first, then each script of the same stream that it starts."""
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
    volume = None if mount is None else containers.volume_named(pod, str(mount.get("name")))
    source = None if volume is None else kinds.at(volume, ("configMap", "name"))
    data = kinds.at(files.get(str(source), {}), ("data",))
    found = data.get(path.rsplit("/", 1)[-1]) if isinstance(data, Mapping) else None
    return None if found is None else str(found)


def _runtime_of(content: Tree, others: Sequence[OtherObject]) -> Tree | None:
    wanted = kinds.at(content, ("spec", "runtimeRef", "name"))
    found = (each for each in others if each.kind in kinds.RUNTIMES and each.name == wanted)
    return next((each.content for each in found), None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
