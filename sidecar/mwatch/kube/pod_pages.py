# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Logs of pods, and HTTP pages of pods and services, through the API server.

For commands that run outside the cluster. Pages need the right `get` on `pods/proxy` or
`services/proxy`. Each call is one try; it raises NoPermission, Rejected or Unavailable on failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mwatch import json_codec
from mwatch.kube.access import Access
from mwatch.kube.errors import Rejected
from mwatch.kube.resources import PODS, SERVICES, ApiResource

HEAD_BYTES = 256 * 1024
TAIL_LINES = 2000
MAX_TAIL_BYTES = 1024 * 1024


class PodLog(NamedTuple):
    """Beginning and end of a container's log.

    The beginning holds the argument block, the end the current state; the middle of a long log is
    not read. A kubelet keeps some ten megabytes of a log, so the first lines may be gone.
    """

    pod: str
    container: str
    is_previous: bool
    """The log of the container before its last restart."""
    head: bytes
    """Lines that begin with a time of RFC 3339 and a space."""
    tail: bytes = b""
    """Empty: the head is the whole log."""

    @property
    def is_cut(self) -> bool:
        return bool(self.tail)


def read_log(
    access: Access,
    namespace: str,
    pod: str,
    container: str,
    *,
    seconds: float,
    is_previous: bool = False,
) -> PodLog:
    path = PODS.path(namespace, pod, part="log")
    query = {"container": container, "timestamps": "true"}
    if is_previous:
        query["previous"] = "true"
    head = access.page(path, {**query, "limitBytes": HEAD_BYTES}, seconds)
    if len(head) < HEAD_BYTES:
        return PodLog(pod, container, is_previous, head)
    tail = access.page(path, {**query, "tailLines": TAIL_LINES}, seconds)[-MAX_TAIL_BYTES:]
    whole = head[: head.rfind(b"\n") + 1]
    return PodLog(pod, container, is_previous, whole, _lines_after(whole, tail))


def last_lines(
    access: Access, namespace: str, pod: str, container: str, *, lines: int, seconds: float
) -> bytes:
    """The end of a container's log, as it was printed."""
    query = {"container": container, "tailLines": lines, "limitBytes": MAX_TAIL_BYTES}
    return access.page(PODS.path(namespace, pod, part="log"), query, seconds)


def _lines_after(head: bytes, tail: bytes) -> bytes:
    """The lines of the tail that the head lacks, without a line whose beginning was cut off."""
    last = head[head.rfind(b"\n", 0, -1) + 1 :].split(b" ", 1)[0]
    lines = tail.splitlines(keepends=True)
    first = 1 if len(tail) == MAX_TAIL_BYTES else 0
    return b"".join(line for line in lines[first:] if line.split(b" ", 1)[0] > last)


class Port(NamedTuple):
    """A port of a pod or a service, as the proxy of the API server reaches it."""

    resource: ApiResource
    namespace: str
    name: str
    number: int

    @property
    def path(self) -> str:
        # The colon before the port is part of the path and must not be escaped.
        name = f"{self.name}:{self.number}"
        return self.resource.path(self.namespace, name, part="proxy").replace("%3A", ":")


def pod_page(
    access: Access, namespace: str, pod: str, port: int, path: str, *, seconds: float
) -> Mapping[str, Any]:
    return _page(access, Port(PODS, namespace, pod, port), path, seconds)


def service_page(
    access: Access, namespace: str, service: str, port: int, path: str, *, seconds: float
) -> Mapping[str, Any]:
    return _page(access, Port(SERVICES, namespace, service, port), path, seconds)


def _page(access: Access, port: Port, path: str, seconds: float) -> Mapping[str, Any]:
    data = access.page(f"{port.path}{path}", None, seconds)
    try:
        found = json_codec.decode(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Rejected(f"{port.name}:{port.number}{path} is not a page of mwatch")
    return found
