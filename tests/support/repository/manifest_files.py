# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Manifests of the tests, and the shortest way to change one and to look into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mwatch.manifests.kinds import templates
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import ManifestResult, inject_text, workloads
from mwatch.model.checks import Workload

FOLDER = Path(__file__).parents[2] / "manifests"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
NATIVE = InjectRequest("mwatch:test", "native")
PLAIN = NATIVE._replace(sidecar="container")


def text_of(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


def injected(name: str, wish: InjectRequest = NATIVE) -> ManifestResult:
    return inject_text(text_of(name), name, wish)


def objects_in(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def unlisted_objects_in(text: str) -> list[Any]:
    """With those of a List one by one: a List must not hold another."""
    return [one for each in objects_in(text) for one in each.get("items", [each])]


def pods_of(text: str, kind: str) -> list[dict[str, Any]]:
    """The pod specs of the first object of that kind."""
    content = next(each for each in objects_in(text) if each["kind"] == kind)
    return [dict(each.spec) for each in templates(content)]


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(each for each in items if each["name"] == name)


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def one_workload(text: str) -> Workload:
    (found,) = workloads(text, "job.yaml")
    return found
