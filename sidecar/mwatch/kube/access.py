# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One place that calls the API server: every call with a time limit, retried where that helps.

429 waits as long as it is told to; 5xx and broken connections back off, with jitter. 404, 409
and 410 are answers; all other refusals are errors of one line. Writes are retried as well, so
each must be safe to repeat: with a name, a UID or a resource version. A write that is repeated
after a broken connection may be answered with 409 or 404 although it was the first that did it.

Who the API server takes us for; where it does not say, who we are on this machine.
"""

from __future__ import annotations

import getpass
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import urllib3

from mwatch import json_codec
from mwatch.kube.answer import OF_STATUS, Answer, CallOutcome
from mwatch.kube.connect import Connection, connect
from mwatch.kube.errors import NoCredentials, NoPermission, Rejected, Unavailable
from mwatch.kube.resources import ApiResource
from mwatch.model.kube.fields import text

MERGE_PATCH = "application/merge-patch+json"
PAGE = 500
_MAX_RETRY_AFTER = 30.0
_MAX_BYTES = 256 * 1024 * 1024


class CallLimits(NamedTuple):
    call_seconds: float = 15.0
    """Of one try."""
    tries: int = 5
    first_wait: float = 0.2
    longest_wait: float = 5.0
    total_seconds: float = 120.0
    """After so long no other try is begun."""


_USUAL = CallLimits()
ONCE = CallLimits(call_seconds=5.0, tries=1)
ACTING = CallLimits(call_seconds=2.5, total_seconds=5.0)
"""Of a change that only the leader may make: over before another can be the leader."""


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
        """`impersonate`: to act as another user, where that is allowed."""
        self._connection = connection
        self._limits = limits
        self._wait = wait
        self._chance = chance
        self._clock = clock
        self._headers = {"Impersonate-User": impersonate} if impersonate else {}
        self.calls = 0
        """Tries that were made, retries included."""
        self.answered_at: float | None = None
        """When the API server last answered anything, by the clock."""

    @property
    def namespace(self) -> str:
        return self._connection.namespace

    def close(self) -> None:
        self._connection.close()

    def get(self, resource: ApiResource, namespace: str | None, name: str, **more: Any) -> Answer:
        return self.call("GET", resource.path(namespace, name), **more)

    def create(self, resource: ApiResource, namespace: str, body: Mapping[str, Any]) -> Answer:
        return self.call("POST", resource.path(namespace), body=body)

    def replace(self, resource: ApiResource, namespace: str, name: str, body: Mapping[str, Any],
                limits: CallLimits | None = None) -> Answer:  # fmt: skip
        """With a resource version in the body: only that version is replaced."""
        return self.call("PUT", resource.path(namespace, name), body=body, limits=limits)

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
        """Only of the object with that UID: CONFLICT where the name is another's by now."""
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return self.call("DELETE", resource.path(namespace, name), body=options, limits=limits)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        limits: CallLimits | None = None,
    ) -> Answer:
        limits = limits or self._limits
        problem, delay, began = "", 0.0, self._clock()
        for number in range(limits.tries):
            if number and self._clock() + delay > began + limits.total_seconds:
                break
            if number:
                self._wait(delay)
            delay = self._backoff(limits, number)
            try:
                response = self._send(method, path, query, body, kind, limits.call_seconds)
                with response:
                    status, data = response.status, self._read(response, 2 * limits.call_seconds)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                problem = (
                    f"the API server at {self._connection.host} does not answer: {_why(error)}"
                )
                continue
            self.answered_at = self._clock()
            if status == 429 or status >= 500:
                delay = _retry_after(response.headers) or delay
                problem = f"the API server is not able to answer ({status}): {_text(data)}"
                continue
            return self._judge(status, data, f"{method} {path}")
        raise Unavailable(f"{problem[:400]}; is the cluster up, and is the address right?")

    def page(self, path: str, query: Mapping[str, Any] | None, seconds: float) -> bytes:
        """One try, as it is answered: a log, or a page of a pod behind the API server."""
        try:
            response = self._send("GET", path, query, None, "", seconds)
            with response:
                data = self._read(response, seconds)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"no answer from {path}: {_why(error)}") from None
        if response.status == 429 or response.status >= 500:
            raise Unavailable(_text(data))
        answer = self._judge(response.status, data, path)
        if not answer.is_ok:
            raise Rejected(answer.text or f"{path}: {answer.outcome.value}")
        return data

    def stream(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[bytes]:
        """Lines, as they come; ends when the server closes it, Unavailable when it breaks.
        `seconds`: without a word in between."""
        try:
            response = self._send("GET", path, query, None, "", seconds)
            with response:
                if response.status != 200:
                    answer = self._judge(response.status, self._read(response, seconds), path)
                    yield json_codec.encode({"type": "ERROR", "object": {"code": _code(answer)}})
                    return
                self.answered_at = self._clock()
                yield from _lines(response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"the watch on {path} broke: {_why(error)}") from None

    def _send(self, method: str, path: str, query: Mapping[str, Any] | None,
              body: Mapping[str, Any] | None, kind: str, seconds: float) -> Any:  # fmt: skip
        self.calls += 1
        headers = {"Accept": "application/json", "User-Agent": "mwatch", **self._headers}
        if (token := self._connection.authorization()) is not None:
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = kind
        address = self._connection.host + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json_codec.encode(body)
        return self._connection.pool.request(
            method, address, headers=headers, body=data,
            timeout=urllib3.Timeout(connect=min(5.0, seconds), read=seconds),
            preload_content=False, retries=False, redirect=False,
        )  # fmt: skip

    def _read(self, response: Any, seconds: float) -> bytes:
        """Whole, within the time: a server may also send a little now and then."""
        until, parts, size = self._clock() + seconds, list[bytes](), 0
        for chunk in response.stream(1 << 20):
            parts.append(chunk)
            size += len(chunk)
            if size > _MAX_BYTES or self._clock() > until:
                raise OSError(f"an answer of {size} bytes and more is too long")
        return b"".join(parts)

    def _judge(self, status: int, data: bytes, what: str) -> Answer:
        if 200 <= status < 300:
            return Answer(CallOutcome.OK, _body(data))
        words = _text(data)
        if status in OF_STATUS:
            return Answer(OF_STATUS[status], _body(data), words)
        if status == 401:
            raise NoCredentials(f"{self._connection.host} does not take these credentials: they "
                                "may have expired; log in again")  # fmt: skip
        if status == 403:
            raise NoPermission(f"{words or what + ': forbidden'}; ask for that right")
        raise Rejected(f"{what}: {words or f'refused with status {status}'}")

    def _backoff(self, limits: CallLimits, number: int) -> float:
        most = min(limits.longest_wait, limits.first_wait * 2.0**number)
        return most * (0.5 + 0.5 * self._chance())


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_BYTES:
            raise OSError("a line of a watch has no end")
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


def _text(data: bytes) -> str:
    """The message of a Status; what is none comes from something before the API server."""
    words = _body(data).get("message") or data[:200].decode("utf-8", "replace")
    return " ".join(str(words).split())[:400]


def _why(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _code(answer: Answer) -> int:
    return next((code for code, outcome in OF_STATUS.items() if outcome is answer.outcome), 0)


_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
MAX_NAME = 120


def whoami(access: Access) -> str:
    """Kubernetes before 1.28 does not know the question."""
    try:
        answer = access.call("POST", _PATH, body=_BODY, limits=ONCE)
        name = text(answer.body, "status", "userInfo", "username") if answer.is_ok else ""
    except (NoPermission, Rejected):
        name = ""
    return (name or _here())[:MAX_NAME]


def _here() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


COMMAND_LIMITS = CallLimits(call_seconds=4.0, tries=2, total_seconds=6.0)
"""For a command that a person waits for."""


def open_access(kubeconfig: str | None, context: str | None) -> Access:
    """NoCluster or NoCredentials, each with its fix."""
    return Access(connect(kubeconfig, context), limits=COMMAND_LIMITS)
