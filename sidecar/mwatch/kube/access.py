# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Calls to the API server: each has a time limit and is retried where that helps.

After a 429 the next try waits for the time that the server requests; after a 5xx or a broken
connection it backs off with jitter. 404, 409 and 410 are returned as answers; any other refusal
raises an error of one line. Writes are retried too, so each must be safe to repeat: with a name, a
UID or a resource version. A write that is repeated after a broken connection may be answered 409 or
404 although the first one succeeded.
"""

from __future__ import annotations

import getpass
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3

from mwatch import json_codec
from mwatch.kube.connect import Connection, connect
from mwatch.kube.errors import NoCluster, NoCredentials, NoPermission, Rejected, Unavailable
from mwatch.kube.resources import ApiResource
from mwatch.model.kube.fields import text
from mwatch.runtime.http_client import reason

MERGE_PATCH = "application/merge-patch+json"
PAGE = 500
_JSON = "application/json"
_METADATA = f"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"
MAX_NAME = 120
_LIST_STARTS = 4
_MAX_RETRY_AFTER = 30.0
_MAX_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 1 << 16
_FAILURES = (urllib3.exceptions.HTTPError, OSError)
_SELF_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


class CallOutcome(StrEnum):
    OK = "ok"
    MISSING = "missing"
    """404: no such object, or no such kind."""
    CONFLICT = "conflict"
    """409: the object exists, has changed, or is another one of the same name."""
    EXPIRED = "expired"
    """410: the requested version is no longer known; list again."""


_OUTCOMES = {404: CallOutcome.MISSING, 409: CallOutcome.CONFLICT, 410: CallOutcome.EXPIRED}


class Answer(NamedTuple):
    outcome: CallOutcome
    body: Mapping[str, Any]
    text: str = ""
    """The API server's message if the outcome is not OK."""

    @property
    def is_ok(self) -> bool:
        return self.outcome is CallOutcome.OK


class ObjectList(NamedTuple):
    objects: tuple[Mapping[str, Any], ...] = ()
    version: str = ""
    """Resource version that a watch continues from."""
    is_known: bool = True
    """False: the cluster does not know this kind."""


class PageResponse(NamedTuple):
    data: bytes
    headers: Mapping[str, str]
    """Names are case-insensitive."""


class CallLimits(NamedTuple):
    call_seconds: float = 15.0
    """Time limit of one try."""
    tries: int = 5
    first_wait: float = 0.2
    longest_wait: float = 5.0
    total_seconds: float = 120.0
    """No further try begins after this time."""


_USUAL = CallLimits()
ONCE = CallLimits(call_seconds=5.0, tries=1)
ACTING = CallLimits(call_seconds=2.5, total_seconds=5.0)
"""For a change that only the leader may make: it ends before another controller can lead."""
COMMAND_LIMITS = CallLimits(call_seconds=4.0, tries=2, total_seconds=6.0)
"""For a command that a person waits for."""
FIRST_CALL = CallLimits(call_seconds=3.5, tries=2, total_seconds=2.0)
"""To find out whether there is an API server: a refused connection is retried, a timeout is not."""


class Access:
    def __init__(
        self,
        connection: Connection,
        *,
        limits: CallLimits = _USUAL,
        wait: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
        impersonate: str | None = None,
    ) -> None:
        """`impersonate`: act as another user, where that is allowed."""
        self._connection = connection
        self._limits = limits
        self._wait = wait
        self._chance = chance
        self._clock = clock
        self._headers = {"Impersonate-User": impersonate} if impersonate else {}
        self.calls = 0
        """Including retries."""
        self.answered_at: float | None = None
        """When the API server last answered anything, on `clock`."""

    @property
    def namespace(self) -> str:
        return self._connection.namespace

    @property
    def host(self) -> str:
        return self._connection.host

    def close(self) -> None:
        self._connection.close()

    def get(self, resource: ApiResource, namespace: str | None, name: str, **more: Any) -> Answer:
        return self.call("GET", resource.path(namespace, name), **more)

    def create(self, resource: ApiResource, namespace: str, body: Mapping[str, Any]) -> Answer:
        return self.call("POST", resource.path(namespace), body=resource.typed(body))

    def replace(self, resource: ApiResource, namespace: str, name: str, body: Mapping[str, Any],
                limits: CallLimits | None = None) -> Answer:  # fmt: skip
        """With a resource version in the body, only that version is replaced."""
        path = resource.path(namespace, name)
        return self.call("PUT", path, body=resource.typed(body), limits=limits)

    def patch(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        *,
        part: str = "",
        limits: CallLimits | None = None,
    ) -> Answer:
        """A merge patch; UID and resource version in the body are preconditions."""
        path = resource.path(namespace, name, part=part)
        return self.call("PATCH", path, body=body, kind=MERGE_PATCH, limits=limits)

    def delete(
        self,
        resource: ApiResource,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
        limits: CallLimits | None = None,
    ) -> Answer:
        """Delete only the object with that UID; CONFLICT if the name belongs to another one."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return self.call("DELETE", resource.path(namespace, name), body=options, limits=limits)

    def list(
        self,
        resource: ApiResource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        page: int = PAGE,
        only_metadata: bool = False,
    ) -> ObjectList:
        """All pages show one moment of the cluster. If the API server has forgotten that moment
        before the last page (410), the list starts over, a bounded number of times."""
        query: dict[str, Any] = {"limit": page}
        accept = _METADATA if only_metadata else _JSON
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        for _ in range(_LIST_STARTS):
            found: list[Mapping[str, Any]] = []
            token: dict[str, str] = {}
            while True:
                answer = self.call(
                    "GET", resource.path(namespace), query=query | token, accept=accept
                )
                if answer.outcome is CallOutcome.MISSING and resource.is_builtin:
                    raise self._not_kubernetes(f"it has no {resource.plural}")
                if answer.outcome is CallOutcome.MISSING:
                    return ObjectList(is_known=False)
                if not answer.is_ok:
                    break
                found += map(resource.typed, answer.body.get("items") or ())
                about = answer.body.get("metadata") or {}
                if not about.get("continue"):
                    return ObjectList(tuple(found), str(about.get("resourceVersion", "")))
                token = {"continue": about["continue"]}
        raise Unavailable(f"the list of {resource.plural} changed faster than it could be read")

    def server_version(self) -> str:
        """Such as `v1.31.2`; empty: this user may not read it. Raises NoCluster or Unavailable
        within seconds if no API server answers."""
        try:
            answer = self.call("GET", "/version", limits=FIRST_CALL)
        except NoPermission:
            return ""
        version = text(answer.body, "gitVersion")
        if not version:
            raise self._not_kubernetes("it does not answer /version")
        return version

    def _not_kubernetes(self, why: str) -> NoCluster:
        return NoCluster(
            f"{self.host} is not a Kubernetes API server: {why}; check the address in the "
            "kubeconfig: kubectl config view --minify"
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = _JSON,
        accept: str = _JSON,
        limits: CallLimits | None = None,
    ) -> Answer:
        limits = limits or self._limits
        problem, delay, began = "", 0.0, self._clock()
        for number in range(limits.tries):
            if number and self._clock() + delay > began + limits.total_seconds:
                break
            if number:
                self._wait(delay)
            longest = min(limits.longest_wait, limits.first_wait * 2.0**number)
            delay = longest * (0.5 + 0.5 * self._chance())
            try:
                response = self._send(method, path, query, limits.call_seconds, body, kind, accept)
                with response:
                    status, data = response.status, _read(response, 2 * limits.call_seconds)
            except _FAILURES as error:
                why = reason(error)
                problem = f"the API server at {self._connection.host} does not answer: {why}"
                continue
            self.answered_at = self._clock()
            if status == 429 or status >= 500:
                delay = _retry_after(response.headers) or delay
                problem = f"the API server cannot answer ({status}): {_message(data)}"
                continue
            return self._answer(status, data, f"{method} {path}")
        raise Unavailable(f"{problem[:400]}; is the cluster up, and is the address right?")

    def page(self, path: str, query: Mapping[str, Any] | None, seconds: float) -> bytes:
        """The raw body, in one try: of a log, or of a pod's page through the API server."""
        return self.response(path, query, seconds).data

    def response(self, path: str, query: Mapping[str, Any] | None, seconds: float) -> PageResponse:
        """The page with its headers; the same errors as `page`."""
        try:
            response = self._send("GET", path, query, seconds)
            with response:
                data = _read(response, seconds)
        except _FAILURES as error:
            raise Unavailable(f"no answer from {path}: {reason(error)}") from None
        if response.status == 429 or response.status >= 500:
            raise Unavailable(_message(data))
        answer = self._answer(response.status, data, path)
        if not answer.is_ok:
            raise Rejected(answer.text or f"{path}: {answer.outcome.value}")
        return PageResponse(data, response.headers)

    def stream(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[bytes]:
        """Lines as they arrive, until the server closes the stream; Unavailable if it breaks.
        `seconds`: the longest silence."""
        try:
            response = self._send("GET", path, query, seconds)
            with response:
                if response.status != 200:
                    self._answer(response.status, _read(response, seconds), path)
                    code = {"code": response.status}
                    yield json_codec.encode({"type": "ERROR", "object": code})
                    return
                self.answered_at = self._clock()
                yield from _lines(response)
        except _FAILURES as error:
            raise Unavailable(f"the watch on {path} broke: {reason(error)}") from None

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        seconds: float,
        body: Mapping[str, Any] | None = None,
        kind: str = _JSON,
        accept: str = _JSON,
    ) -> urllib3.BaseHTTPResponse:
        self.calls += 1
        headers = {"Accept": accept, "User-Agent": "mwatch", **self._headers}
        if (token := self._connection.authorization()) is not None:
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = kind
        address = self._connection.host + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json_codec.encode(body)
        timeout = urllib3.Timeout(connect=min(5.0, seconds), read=seconds)
        response: urllib3.BaseHTTPResponse = self._connection.pool.request(
            method, address, headers=headers, body=data, timeout=timeout,
            preload_content=False, retries=False, redirect=False,
        )  # fmt: skip
        return response

    def _answer(self, status: int, data: bytes, what: str) -> Answer:
        if 200 <= status < 300:
            return Answer(CallOutcome.OK, _body(data))
        message = _message(data)
        if status in _OUTCOMES:
            return Answer(_OUTCOMES[status], _body(data), message)
        if status == 401:
            raise NoCredentials(f"{self._connection.host} rejects these credentials: they may have "
                                "expired; log in again")  # fmt: skip
        if status == 403:
            raise NoPermission(f"{message or what + ': forbidden'}; ask for that right")
        raise Rejected(f"{what}: {message or f'refused with status {status}'}")


def _read(response: urllib3.BaseHTTPResponse, seconds: float) -> bytes:
    """The whole body; OSError if it is cut off, too large, or does not end in time."""
    until, data = time.monotonic() + seconds, bytearray()
    # `read1` returns what has arrived: `read` and `stream` would block on a slow server.
    while chunk := response.read1(_CHUNK_BYTES, decode_content=False):
        data += chunk
        if len(data) > _MAX_BYTES:
            raise OSError(f"its answer is larger than {_MAX_BYTES} bytes")
        if time.monotonic() > until:
            raise OSError("its answer does not end in time")
    return bytes(data)


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_BYTES:
            raise OSError("a line of the watch does not end")
        yield from (line for line in whole if line)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After") or ""
    return min(float(value), _MAX_RETRY_AFTER) if value.isdigit() else None


def _body(data: bytes) -> Mapping[str, Any]:
    try:
        found = json_codec.decode(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _message(data: bytes) -> str:
    """The message of a Status; other text comes from a proxy before the API server."""
    message = _body(data).get("message") or data[:200].decode("utf-8", "replace")
    return " ".join(str(message).split())[:400]


def whoami(access: Access) -> str:
    """The user name at the API server (Kubernetes 1.28 and newer), else on this machine."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    try:
        answer = access.call("POST", path, body=_SELF_REVIEW, limits=ONCE)
        name = text(answer.body, "status", "userInfo", "username") if answer.is_ok else ""
    except (NoPermission, Rejected):
        name = ""
    return (name or _local_user())[:MAX_NAME]


def _local_user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def open_access(kubeconfig: str | None, context: str | None) -> Access:
    """For a command. Raises NoCluster or NoCredentials, whose message names the fix."""
    return Access(connect(kubeconfig, context), limits=COMMAND_LIMITS)
