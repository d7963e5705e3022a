# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who may ask for more than a look: the one who has the job's token.

The token is a file, as a mounted Secret is, and is read for each request: a new one holds from then
on. Without one nobody may. Whoever guesses wrong too often is not listened to for a while, even
with the right one; others are.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from mwatch.export.request import Request

MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MIN_TOKEN_BYTES = 16
_MAX_TOKEN_BYTES = 4096
_MAX_CLIENTS = 1024
_SCHEME = "bearer"


class Refusal(NamedTuple):
    status: HTTPStatus
    words: str


class Bearer:
    def __init__(self, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`file` holds the token; None: none was configured."""
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def refusal(self, request: Request) -> Refusal | None:
        """None: it may."""
        token = self._token()
        if isinstance(token, Refusal):
            return token
        if self._is_held_off(request.client):
            words = f"too many wrong tokens: wait {WINDOW_SECONDS:.0f} s"
            return Refusal(HTTPStatus.TOO_MANY_REQUESTS, words)
        given = _given(request)
        if given is None:
            return Refusal(HTTPStatus.UNAUTHORIZED, "send the job's token: Authorization: Bearer …")
        if not hmac.compare_digest(given, token):
            self._failed(request.client)
            return Refusal(HTTPStatus.UNAUTHORIZED, "this is not the job's token")
        return None

    def _token(self) -> bytes | Refusal:
        if self._file is None:
            return _closed("no token is configured for this job")
        try:
            with self._file.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES + 1).strip()
        except OSError as error:
            return _closed(f"the token file cannot be read ({error.strerror})")
        if not MIN_TOKEN_BYTES <= len(token) <= _MAX_TOKEN_BYTES:
            return _closed(f"the token file holds no token of {MIN_TOKEN_BYTES} bytes or more")
        return token

    def _is_held_off(self, client: str) -> bool:
        with self._lock:
            failures = self._failures.get(client)
            if failures is None:
                return False
            while failures and self._clock() - failures[0] > WINDOW_SECONDS:
                failures.popleft()
            return len(failures) >= MAX_FAILURES

    def _failed(self, client: str) -> None:
        with self._lock:
            failures = self._failures.setdefault(client, deque(maxlen=MAX_FAILURES))
            failures.append(self._clock())
            self._failures.move_to_end(client)
            if len(self._failures) > _MAX_CLIENTS:
                self._failures.popitem(last=False)


def _closed(why: str) -> Refusal:
    words = f"{why}: evidence and restarts over HTTP are closed"
    return Refusal(HTTPStatus.FORBIDDEN, words)


def _given(request: Request) -> bytes | None:
    """Names of headers come as they were sent."""
    sent = (text for name, text in request.headers.items() if name.lower() == "authorization")
    scheme, _, token = next(sent, "").strip().partition(" ")
    if scheme.lower() != _SCHEME or not token.strip():
        return None
    return token.strip().encode("utf-8", "replace")
