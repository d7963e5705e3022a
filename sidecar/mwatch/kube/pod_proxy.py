# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of a pod or a service, by way of the API server: for a person outside of the cluster.

It needs the right `get` on `pods/proxy` or `services/proxy`. A pod that does not answer costs the
time limit of one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mwatch import json_codec
from mwatch.kube.access import Access
from mwatch.kube.errors import Rejected
from mwatch.kube.resources import PODS, SERVICES, ApiResource


def pod_page(
    access: Access, namespace: str, pod: str, port: int, path: str, *, seconds: float
) -> Mapping[str, Any]:
    """The JSON object there. NoPermission, Rejected or Unavailable where there is none."""
    return _page(access, PODS, namespace, f"{pod}:{port}", path, seconds)


def service_page(
    access: Access, namespace: str, service: str, port: int, path: str, *, seconds: float
) -> Mapping[str, Any]:
    return _page(access, SERVICES, namespace, f"{service}:{port}", path, seconds)


def _page(
    access: Access, resource: ApiResource, namespace: str, name: str, path: str, seconds: float
) -> Mapping[str, Any]:
    # The colon before the port belongs to the path, and must not be escaped.
    base = resource.path(namespace, name, part="proxy").replace("%3A", ":")
    data = access.page(f"{base}{path}", None, seconds)
    try:
        found = json_codec.decode(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Rejected(f"{name}{path} is not a page of mwatch")
    return found
