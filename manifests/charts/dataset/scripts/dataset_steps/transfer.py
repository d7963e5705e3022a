# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Gets a file over HTTP: goes on where it was cut off, waits and tries again, checks what came.

The hub's token is for the hub: it is not sent on to where the hub redirects. Without a size from
the listing and without one from the server a cut cannot be told from an end; then the unpacking
tells.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable

from dataset_steps.problem import Problem, Settled
from dataset_steps.say import say
from dataset_steps.settings import Retry

_CHUNK = 1 << 20
_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
_SAYS = {
    401: "the server wants a token: put one in a Secret and name it in hub.tokenSecret",
    403: "the token may not read it: accept the dataset's terms on the hub, or use another token",
    404: "it is not there: check the address and the revision",
}


class _Again(Exception):
    """Worth another try; `wait` is what the server asks for."""

    def __init__(self, text: str, wait: float | None = None) -> None:
        super().__init__(text)
        self.wait = wait


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any):  # type: ignore[no-untyped-def]
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and _host(newurl) != _host(req.full_url):
            new.headers.pop("Authorization", None)
            new.unredirected_hdrs.pop("Authorization", None)
        return new


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).netloc


_OPENER = urllib.request.build_opener(_Redirects)


def get(url: str, retry: Retry, token: str = "", start: int = 0) -> Any:
    """The open answer. Settled or _Again where there is none."""
    headers = {"User-Agent": "mwatch-dataset", "Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return _OPENER.open(
            urllib.request.Request(url, headers=headers), timeout=retry.read_seconds
        )
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _AGAIN or error.code == 416:
                raise _Again(f"HTTP {error.code}", _wanted_wait(error.headers)) from None
        why = _SAYS.get(error.code, "the server refuses it")
        raise Settled(f"{_shown(url)}: HTTP {error.code}; {why}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Again(_text(error)) from None


def _shown(url: str) -> str:
    """Without its query: that of a signed address is a secret."""
    return url.partition("?")[0]


def _text(error: BaseException) -> str:
    return str(getattr(error, "reason", "") or error) or type(error).__name__


def _wanted_wait(headers: Any) -> float | None:
    text = headers.get("Retry-After") or ""
    return float(text) if text.isdigit() else None


def try_often(what: str, retry: Retry, act: Callable[[], Any]) -> Any:
    """With waits that double and never beat in step. Problem when all tries are used up."""
    for attempt in range(1, retry.attempts + 1):
        try:
            return act()
        except _Again as error:
            if attempt == retry.attempts:
                raise Problem(f"{what}: {error}, {attempt} times; giving up") from None
            wait = min(retry.most_seconds, retry.first_seconds * 2 ** (attempt - 1))
            wait = min(retry.most_seconds, max(wait * random.uniform(0.5, 1.0), error.wait or 0.0))
            say(f"{what}: {error}; again in {wait:.0f} s ({attempt} of {retry.attempts})")
            time.sleep(wait)
    raise AssertionError("unreachable")


def read_page(url: str, retry: Retry, token: str = "") -> Any:
    """Body and headers of a small answer."""

    def once() -> Any:
        try:
            with get(url, retry, token) as answer:
                return answer.read(), answer.headers
        except (OSError, http.client.HTTPException) as error:
            raise _Again(_text(error)) from None

    return try_often(_shown(url), retry, once)


def fetch(entry: dict[str, Any], target: str, retry: Retry, token: str = "") -> int:
    """Writes the file of a listing's entry to `target`; gives its size back."""
    part = f"{target}.part"
    os.makedirs(os.path.dirname(target), exist_ok=True)

    def once() -> int:
        _append(entry, part, retry, token)
        _check(entry, part)
        return os.path.getsize(part)

    number = int(try_often(str(entry["name"]), retry, once))
    os.replace(part, target)
    return number


def _append(entry: dict[str, Any], part: str, retry: Retry, token: str) -> None:
    size = entry.get("size")
    have = os.path.getsize(part) if os.path.exists(part) else 0
    if size is not None and have > size:
        os.unlink(part)
        have = 0
    if size is not None and have == size:
        return
    try:
        with get(str(entry["url"]), retry, token, have) as answer:
            begins = _begin(answer) if have else 0
            whole = _whole(answer, begins)
            with open(part, "r+b" if begins and begins == have else "wb") as file:
                if begins == have:
                    file.seek(begins)
                elif begins:
                    raise _Again("the server went on at another place")
                _pour(answer, file)
    except (OSError, http.client.HTTPException) as error:
        raise _Again(_text(error)) from None
    except _Again as error:
        if "416" in str(error):
            # What is there is longer than, or other than, what the server has.
            os.unlink(part)
        raise
    have = os.path.getsize(part)
    if whole is not None and have != whole:
        raise _Again(f"cut off after {have} of {whole} bytes")


def _begin(answer: Any) -> int:
    """Where the answer begins; a server that knows no ranges starts over."""
    if answer.status != 206:
        return 0
    text = (answer.headers.get("Content-Range") or "").partition("-")[0].rpartition(" ")[2]
    return int(text) if text.isdigit() else 0


def _whole(answer: Any, begins: int) -> int | None:
    text = answer.headers.get("Content-Length") or ""
    return begins + int(text) if text.isdigit() else None


def _pour(answer: Any, file: Any) -> None:
    while True:
        block = answer.read(_CHUNK)
        if not block:
            file.flush()
            os.fsync(file.fileno())
            return
        file.write(block)


def _check(entry: dict[str, Any], part: str) -> None:
    """A file that is wrong is thrown away: to go on with it would keep it wrong."""
    size, wanted = entry.get("size"), entry.get("sha256")
    have = os.path.getsize(part)
    if size is not None and have != size:
        os.unlink(part)
        raise _Again(f"has {have} bytes and not {size}")
    if wanted:
        digest = hashlib.sha256()
        with open(part, "rb") as file:
            for block in iter(lambda: file.read(_CHUNK), b""):
                digest.update(block)
        if digest.hexdigest() != wanted:
            os.unlink(part)
            raise _Again("is damaged (its SHA-256 is another)")
