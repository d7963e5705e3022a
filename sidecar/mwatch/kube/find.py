# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job by its name, whole, as a person names it; and what else is there when there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.jobs import KINDS, complete
from mwatch.kube.listing import list_all
from mwatch.kube.resources import OF_KIND
from mwatch.model.kube_job import JobKind, KubeJob, job_of

_MAX_NAMES = 500


class FoundJob(NamedTuple):
    job: KubeJob
    body: Mapping[str, Any]
    """The object, as the API server has it."""


def find_whole(
    access: Access, namespace: str, name: str, kind: JobKind | None = None
) -> FoundJob | None:
    """Of the first kind that has one. NoPermission where none was found, and there are kinds that
    we may not read."""
    problem: NoPermission | None = None
    for each in KINDS if kind is None else (kind,):
        resource = OF_KIND[each]
        try:
            answer = access.get(resource, namespace, name)
        except NoPermission as error:
            problem = problem or error
            continue
        if not answer.is_ok:
            continue
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **answer.body}
        job = job_of(body)
        if job is not None:
            return FoundJob(complete(access, job), body)
    if problem is not None:
        raise problem
    return None


def job_names(access: Access, namespace: str | None) -> list[str]:
    """`NAME` of every job that there is, as far as we may see: for a hint, never for an action."""
    names: list[str] = []
    for kind in KINDS:
        try:
            listing = list_all(access, OF_KIND[kind], namespace)
        except KubeError:
            continue
        for body in listing.objects if listing is not None else ():
            names.append(str((body.get("metadata") or {}).get("name", "")))
    return list(dict.fromkeys(names))[:_MAX_NAMES]
