# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The log of a container: its beginning and its end, each line with the time of its node.

The beginning holds the argument block and what was loaded, the end what is going on. What lies
between them in a long log is not read. A kubelet keeps some ten megabytes of a log: the first
lines of a long run may be gone.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.kube.access import Access
from mwatch.kube.resources import PODS

HEAD_BYTES = 256 * 1024
TAIL_LINES = 2000
MAX_TAIL_BYTES = 1024 * 1024


class PodLog(NamedTuple):
    pod: str
    container: str
    is_previous: bool
    """Of the container before the last restart."""
    head: bytes
    """Lines that begin with a time of RFC 3339 and a space."""
    tail: bytes = b""
    """Empty: the head is all of it."""

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
    """NoPermission, Rejected or Unavailable where it cannot be had."""
    path = PODS.path(namespace, pod, part="log")
    query = {"container": container, "timestamps": "true"}
    if is_previous:
        query["previous"] = "true"
    head = access.page(path, {**query, "limitBytes": HEAD_BYTES}, seconds)
    if len(head) < HEAD_BYTES:
        return PodLog(pod, container, is_previous, head)
    tail = access.page(path, {**query, "tailLines": TAIL_LINES}, seconds)[-MAX_TAIL_BYTES:]
    whole = head[: head.rfind(b"\n") + 1]
    return PodLog(pod, container, is_previous, whole, _news(whole, tail))


def _news(head: bytes, tail: bytes) -> bytes:
    """What the head does not hold; a line that was cut at its beginning is left out."""
    last = head[head.rfind(b"\n", 0, -1) + 1 :].split(b" ", 1)[0]
    lines = tail.splitlines(keepends=True)
    first = 1 if len(tail) == MAX_TAIL_BYTES else 0
    return b"".join(line for line in lines[first:] if line.split(b" ", 1)[0] > last)
