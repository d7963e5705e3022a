# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the CRD of a job keeps of an init container, by its schema: nothing is written to ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mwatch.kube.access import ONCE, Access
from mwatch.kube.resources import CRDS, OF_KIND
from mwatch.model.kube_fields import items, part, text
from mwatch.model.kube_job import JobKind
from mwatch.model.running import Kept


def kept_fields(access: Access, kind: JobKind) -> Kept | None:
    """By the schema, whose pod templates may lie anywhere."""
    resource = OF_KIND[kind]
    if kind in (JobKind.JOB, JobKind.STATEFUL_SET):
        return None
    answer = access.get(CRDS, None, f"{resource.plural}.{resource.group}", limits=ONCE)
    if not answer.is_ok:
        return None
    found = [
        fields
        for each in items(answer.body, "spec", "versions")
        if text(each, "name") == resource.version
        for fields in _init_fields(part(each, "schema", "openAPIV3Schema"))
    ]
    if not found:
        return None
    return Kept(
        all("restartPolicy" in each for each in found),
        all("restartPolicyRules" in each for each in found),
    )


def _init_fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of each `initContainers` in it."""
    if isinstance(schema, list):
        return [one for each in schema for one in _init_fields(each)]
    if not isinstance(schema, dict):
        return []
    found = part(schema, "initContainers", "items", "properties")
    here = [found] if isinstance(found, dict) else []
    deeper = (each for key, each in schema.items() if key != "initContainers")
    return here + [one for each in deeper for one in _init_fields(each)]
