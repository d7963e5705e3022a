# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked and what is answered over HTTP, and which page belongs to which path.

A path may hold one parameter: `/v1/evidence/{}.tgz`. A parameter has letters, digits, dots and
dashes, never begins with a dot, and has no slash: it can lead nowhere. What it means is the page's
business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

_PARAMETER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)


class Request(NamedTuple):
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    body: bytes = b""
    parameter: str = ""
    client: str = ""
    """Its address."""
    query: str = ""
    """What stands behind the `?`, as it was sent."""


Send = Callable[[bytes], object]


class Page(NamedTuple):
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = {}
    stream: Callable[[Send], None] | None = None
    """Sends the body in pieces, instead of `body`: it need not fit into memory."""


Handler = Callable[[Request], Page]


class Endpoint(NamedTuple):
    """A path with more than one method, or one that takes its time."""

    get: Handler | None = None
    post: Handler | None = None
    seconds: float = 0.0
    """How long the answer may take, once the request is there; 0: as the server has it."""

    @property
    def methods(self) -> tuple[str, ...]:
        found = (("GET", self.get), ("HEAD", self.get), ("POST", self.post))
        return tuple(name for name, handler in found if handler is not None)

    def handler(self, method: str) -> Handler | None:
        return {"GET": self.get, "HEAD": self.get, "POST": self.post}.get(method)


Pages = Mapping[str, Handler | Endpoint]
"""By path; a function alone answers GET. They are made in the threads of the server, several at a
time."""


class Route(NamedTuple):
    resource: Endpoint
    parameter: str


def in_url(host: str) -> str:
    """An address of IPv6 stands in brackets: its colons are no port's."""
    return f"[{host}]" if ":" in host else host


def find(pages: Pages, path: str) -> Route | None:
    """A path without a parameter goes first."""
    if (exact := pages.get(path)) is not None and "{}" not in path:
        return Route(_resource(exact), "")
    return next(_with_parameter(pages, path), None)


def _with_parameter(pages: Pages, path: str) -> Iterator[Route]:
    for pattern, page in pages.items():
        before, braces, after = pattern.partition("{}")
        if not braces or not path.startswith(before) or not path.endswith(after):
            continue
        parameter = path[len(before) : len(path) - len(after)]
        if _PARAMETER.fullmatch(parameter):
            yield Route(_resource(page), parameter)


def _resource(page: Handler | Endpoint) -> Endpoint:
    return page if isinstance(page, Endpoint) else Endpoint(get=page)
