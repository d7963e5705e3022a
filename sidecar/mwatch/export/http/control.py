# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints that need the job's token: collect and download evidence, restart in place.

The list of bundles contains only names and sizes and needs no token. The token is a file, such as a
mounted Secret, and is read for each request. A client that sends too many wrong tokens is refused
for a while, even with the right one. Collecting and restarting are implemented by the caller.
"""

from __future__ import annotations

import gzip
import hmac
import json
import os
import stat
import tarfile
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from mwatch.export.http.server import Endpoint, Handler, Page, Pages, Request, Send
from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome
from mwatch_trainer.scrub.scrubber import scrub_text

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PIECE_BYTES = 1 << 16
_LEVEL = 5
MAX_FILES = 8192


def send_tgz(folder: Path, name: str, send: Send) -> None:
    """Send the regular files of a folder as a `.tgz` while they are read. Raises OSError.

    A file that shrinks while it is read truncates the archive, which the client notices.
    """
    pieces = _Pieces(send)
    descriptor = os.open(folder, _FOLDER)
    try:
        with (
            gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=pieces) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for member in _members(descriptor):
                with member.file:
                    archive.addfile(_info(member, name), member.file)
    finally:
        os.close(descriptor)
    pieces.flush()


class _Member(NamedTuple):
    name: str
    status: os.stat_result
    file: IO[bytes]


class _Pieces:
    """A file for gzip that sends what is written in pieces of at least `_PIECE_BYTES`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        self._held += data
        if len(self._held) >= _PIECE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._held:
            self._send(bytes(self._held))
            self._held.clear()


def _members(folder: int) -> Iterator[_Member]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for _, entry in zip(range(MAX_FILES), entries, strict=False))
    for name in names:
        if name.startswith("."):
            continue  # being written
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except OSError:
            continue  # a link, or removed
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            yield _Member(name, status, os.fdopen(descriptor, "rb"))
        else:
            os.close(descriptor)


def _info(member: _Member, folder: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"{folder}/{member.name}")
    info.size = member.status.st_size
    info.mtime = int(member.status.st_mtime)
    info.mode = 0o600
    return info


MAX_FAILURES = 10
WINDOW_SECONDS = 60.0
MIN_TOKEN_BYTES = 16
_MAX_TOKEN_BYTES = 4096
_MAX_CLIENTS = 1024
_SCHEME = "bearer"
NOT_MOUNTED = "the job's token is not mounted: retry, as a new Secret takes about a minute"


class HttpRefusal(NamedTuple):
    status: HTTPStatus
    text: str


class Bearer:
    def __init__(self, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def refusal(self, request: Request) -> HttpRefusal | None:
        token = self._token()
        if isinstance(token, HttpRefusal):
            return token
        if self._is_held_off(request.client):
            text = f"too many wrong tokens: wait {WINDOW_SECONDS:.0f} s"
            return HttpRefusal(HTTPStatus.TOO_MANY_REQUESTS, text)
        given = _given(request)
        if given is None:
            return HttpRefusal(
                HTTPStatus.UNAUTHORIZED, "send the job's token: Authorization: Bearer …"
            )
        if not hmac.compare_digest(given, token):
            self._failed(request.client)
            return HttpRefusal(HTTPStatus.UNAUTHORIZED, "this is not the job's token")
        return None

    def _token(self) -> bytes | HttpRefusal:
        if self._file is None:
            return _closed("no token is configured for this job")
        try:
            with self._file.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES + 1).strip()
        except FileNotFoundError:
            return HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, NOT_MOUNTED)
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


def _closed(why: str) -> HttpRefusal:
    return HttpRefusal(HTTPStatus.FORBIDDEN, f"{why}: evidence and restarts over HTTP are disabled")


def _given(request: Request) -> bytes | None:
    sent = (text for name, text in request.headers.items() if name.lower() == "authorization")
    scheme, _, token = next(sent, "").strip().partition(" ")
    if scheme.lower() != _SCHEME or not token.strip():
        return None
    return token.strip().encode("utf-8", "replace")


MAX_WAIT_SECONDS = 25.0
_SECONDS = 60.0
"""Time limit that includes waiting for evidence."""
_STREAM_SECONDS = 300.0
_AT_A_TIME = 4
"""Limit of parallel requests that hanging storage can block; scrapes use the rest."""
_MAX_GRACE_SECONDS = 3600.0
_MAX_TEXT = 500
_MAX_NUMBER = 10**12
_STATUS = {
    RestartOutcome.ACCEPTED: HTTPStatus.ACCEPTED,
    RestartOutcome.ALREADY: HTTPStatus.ACCEPTED,
    RestartOutcome.WRONG_ATTEMPT: HTTPStatus.CONFLICT,
    RestartOutcome.NOT_RUNNING: HTTPStatus.CONFLICT,
    RestartOutcome.OBSERVING: HTTPStatus.FORBIDDEN,
    RestartOutcome.UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    RestartOutcome.REFUSED: HTTPStatus.BAD_GATEWAY,
}


class EvidenceHandler(Protocol):
    def ask(self, reason: str) -> str | None:
        """Return the id of the new bundle; None if too many are waiting."""

    def manifest(self, id: str, wait_seconds: float) -> Mapping[str, Any] | None:
        """Return the manifest if the bundle is finished within that time."""

    def listing(self) -> Sequence[Mapping[str, Any]]: ...

    def folder(self, id: str) -> Path | None:
        """Return the folder of a finished bundle."""


class _Bad(ValueError):
    """The request is invalid."""


def control_pages(
    token_file: Path | None,
    evidence: EvidenceHandler,
    restart: Callable[[RestartOrder], RestartAnswer],
) -> Pages:
    """Return the endpoints; without a `token_file` all except the list are refused."""
    bearer = Bearer(token_file)
    free = threading.Semaphore(_AT_A_TIME)

    def guarded(handler: Handler) -> Handler:
        def answer(request: Request) -> Page:
            refusal = bearer.refusal(request)
            if refusal is not None:
                return _refused(refusal.status, refusal.text)
            if not free.acquire(blocking=False):
                return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "busy with other requests")
            try:
                return handler(request)
            except _Bad as error:
                return _refused(HTTPStatus.BAD_REQUEST, str(error))
            except OSError as error:
                text = f"cannot read the evidence folder: {error.strerror or error}"
                return _refused(HTTPStatus.SERVICE_UNAVAILABLE, text)
            finally:
                free.release()

        return answer

    collect = guarded(partial(_collect, evidence))
    return {
        "/v1/evidence": Endpoint(get=partial(_list, evidence), post=collect, seconds=_SECONDS),
        "/v1/evidence/{}.tgz": Endpoint(
            get=guarded(partial(_bundle, evidence)), seconds=_STREAM_SECONDS
        ),
        "/v1/restart": Endpoint(post=guarded(partial(_restart, restart)), seconds=_SECONDS),
    }


def _collect(evidence: EvidenceHandler, request: Request) -> Page:
    asked = _object(request.body)
    wait = _seconds(asked, "wait_seconds", 0.0, MAX_WAIT_SECONDS)
    id = evidence.ask(_text(asked, "reason"))
    if id is None:
        return _refused(HTTPStatus.TOO_MANY_REQUESTS, "too many bundles are being collected")
    manifest = evidence.manifest(id, wait) if wait else None
    if manifest is None:
        return _json({"id": id}, HTTPStatus.ACCEPTED)
    return _json({"id": id, "manifest": manifest})


def _list(evidence: EvidenceHandler, request: Request) -> Page:
    return _json({"version": 1, "bundles": list(evidence.listing())})


def _bundle(evidence: EvidenceHandler, request: Request) -> Page:
    folder = evidence.folder(request.parameter)
    if folder is None:
        return _refused(HTTPStatus.NOT_FOUND, "no such bundle, or it is not finished")
    name = request.parameter
    return Page(
        b"",
        "application/gzip",
        headers={"Content-Disposition": f'attachment; filename="{name}.tgz"'},
        stream=partial(send_tgz, folder, name),
    )


def _restart(restart: Callable[[RestartOrder], RestartAnswer], request: Request) -> Page:
    asked = _object(request.body)
    attempt = _count(asked.get("attempt"), "attempt")
    resume_from = asked.get("resume_from")
    order = RestartOrder(
        attempt=attempt,
        resume_from=None if resume_from is None else _count(resume_from, "resume_from"),
        reason=_text(asked, "reason"),
        who=_text(asked, "who"),
        wants_evidence=asked.get("evidence", True) is not False,
        grace_seconds=_seconds(asked, "grace_seconds", 10.0, _MAX_GRACE_SECONDS),
        with_save=asked.get("save") is True,
    )
    answer = restart(order)
    body: dict[str, Any] = {"outcome": answer.outcome.value}
    if answer.text:
        body["error" if answer.outcome is not RestartOutcome.ACCEPTED else "text"] = answer.text
    if answer.attempt is not None:
        body["attempt"] = answer.attempt
    if answer.evidence is not None:
        body["evidence"] = answer.evidence
    return _json(body, _STATUS[answer.outcome])


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise _Bad("the body is not JSON") from None
    if not isinstance(found, dict):
        raise _Bad("the body is not a JSON object")
    return found


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _Bad(f"{name} must be a non-empty text")
    return scrub_text(value.strip())[:_MAX_TEXT]


def _seconds(asked: Mapping[str, Any], name: str, default: float, most: float) -> float:
    value = asked.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise _Bad(f"{name} must be a number between 0 and {most:.0f}")
    return float(value)


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise _Bad(f"{name} must be a whole number of at least 0")
    return value


def _json(body: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Page:
    return Page(json.dumps(body).encode() + b"\n", "application/json", status)


def _refused(status: HTTPStatus, text: str) -> Page:
    page = _json({"error": text}, status)
    if status is HTTPStatus.UNAUTHORIZED:
        return page._replace(headers={"WWW-Authenticate": "Bearer"})
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        return page._replace(headers={"Retry-After": "60"})
    return page
