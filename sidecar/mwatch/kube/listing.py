# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lists of objects, page by page.

A list is one moment of the cluster, however many pages it has. When that moment is forgotten
before the last page (410), the list starts over, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mwatch.kube.access import PAGE, Access
from mwatch.kube.answer import CallOutcome
from mwatch.kube.errors import Unavailable
from mwatch.kube.resources import ApiResource

_STARTS = 4


class ObjectList(NamedTuple):
    objects: tuple[Mapping[str, Any], ...]
    version: str
    """Resource version that a watch goes on from."""


def list_all(
    access: Access,
    resource: ApiResource,
    namespace: str | None,
    *,
    labels: str = "",
    fields: str = "",
    page: int = PAGE,
) -> ObjectList | None:
    """None: the cluster does not know this kind."""
    query: dict[str, Any] = {"limit": page}
    query.update({"labelSelector": labels} if labels else {})
    query.update({"fieldSelector": fields} if fields else {})
    for _ in range(_STARTS):
        found: list[Mapping[str, Any]] = []
        token = ""
        while True:
            answer = access.call(
                "GET",
                resource.path(namespace),
                query={**query, **({"continue": token} if token else {})},
            )
            if answer.outcome is CallOutcome.MISSING:
                return None
            if not answer.is_ok:
                break  # forgotten: from the first page again
            found += (_whole(each, resource) for each in answer.body.get("items") or ())
            about = answer.body.get("metadata") or {}
            token = about.get("continue") or ""
            if not token:
                return ObjectList(tuple(found), str(about.get("resourceVersion", "")))
    raise Unavailable(f"the list of {resource.plural} changed faster than it could be read")


def _whole(body: Mapping[str, Any], resource: ApiResource) -> Mapping[str, Any]:
    """Objects in a list do not say what they are."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
