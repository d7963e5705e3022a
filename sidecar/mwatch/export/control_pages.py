# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages by which somebody asks for more than a look: evidence now, and a restart in place.

They answer in JSON and need the job's token, but for the list of bundles, which holds names and
sizes. What evidence is and how a restart is done is not known here: a desk and a function do it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

from mwatch.export.archive import send_tgz
from mwatch.export.bearer import Bearer
from mwatch.export.request import Handler, Page, Pages, Request, Resource
from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome
from mwatch_trainer.scrub import scrub_text

MAX_WAIT_SECONDS = 25.0
_SECONDS = 60.0
"""For evidence that is waited for, and what comes after it."""
_STREAM_SECONDS = 300.0
_AT_A_TIME = 4
"""Storage that hangs holds so many: the rest of the server's places are for scrapes."""
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


class EvidenceDesk(Protocol):
    def ask(self, reason: str) -> str | None:
        """The id of the bundle that is being made; None: too many are waiting."""

    def manifest(self, id: str, wait_seconds: float) -> Mapping[str, Any] | None:
        """Of a bundle that is finished within that time."""

    def listing(self) -> Sequence[Mapping[str, Any]]: ...

    def folder(self, id: str) -> Path | None:
        """Of a bundle that is finished."""


class _Bad(ValueError):
    """The request is wrong; the text says how."""


def control_pages(
    token_file: Path | None,
    desk: EvidenceDesk,
    restart: Callable[[RestartOrder], RestartAnswer],
) -> Pages:
    """`token_file`: None where no token was configured, and all but the list is refused."""
    bearer = Bearer(token_file)
    free = threading.Semaphore(_AT_A_TIME)

    def guarded(handler: Handler) -> Handler:
        def answer(request: Request) -> Page:
            refusal = bearer.refusal(request)
            if refusal is not None:
                return _refused(refusal.status, refusal.words)
            if not free.acquire(blocking=False):
                return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "busy with other requests")
            try:
                return handler(request)
            except _Bad as error:
                return _refused(HTTPStatus.BAD_REQUEST, str(error))
            except OSError as error:
                words = f"the folder of evidence: {error.strerror or error}"
                return _refused(HTTPStatus.SERVICE_UNAVAILABLE, words)
            finally:
                free.release()

        return answer

    collect = guarded(partial(_collect, desk))
    return {
        "/v1/evidence": Resource(get=partial(_list, desk), post=collect, seconds=_SECONDS),
        "/v1/evidence/{}.tgz": Resource(
            get=guarded(partial(_bundle, desk)), seconds=_STREAM_SECONDS
        ),
        "/v1/restart": Resource(post=guarded(partial(_restart, restart)), seconds=_SECONDS),
    }


def _collect(desk: EvidenceDesk, request: Request) -> Page:
    asked = _object(request.body)
    wait = _seconds(asked, "wait_seconds", 0.0, MAX_WAIT_SECONDS)
    id = desk.ask(_text(asked, "reason"))
    if id is None:
        return _refused(HTTPStatus.TOO_MANY_REQUESTS, "too many bundles are being made")
    manifest = desk.manifest(id, wait) if wait else None
    if manifest is None:
        return _json({"id": id}, HTTPStatus.ACCEPTED)
    return _json({"id": id, "manifest": manifest})


def _list(desk: EvidenceDesk, request: Request) -> Page:
    return _json({"version": 1, "bundles": list(desk.listing())})


def _bundle(desk: EvidenceDesk, request: Request) -> Page:
    folder = desk.folder(request.parameter)
    if folder is None:
        return _refused(HTTPStatus.NOT_FOUND, "there is no such bundle, or not yet")
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
        raise _Bad("the body is no JSON") from None
    if not isinstance(found, dict):
        raise _Bad("the body is no JSON object")
    return found


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _Bad(f"{name} must be a text: who reads it later should know why")
    return scrub_text(value.strip())[:_MAX_TEXT]


def _seconds(asked: Mapping[str, Any], name: str, default: float, most: float) -> float:
    value = asked.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise _Bad(f"{name} must be a number between 0 and {most:.0f}")
    return float(value)


def _count(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise _Bad(f"{name} must be a number from 0 on")
    return value


def _json(body: Mapping[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Page:
    return Page(json.dumps(body).encode() + b"\n", "application/json", status)


def _refused(status: HTTPStatus, words: str) -> Page:
    page = _json({"error": words}, status)
    if status is HTTPStatus.UNAUTHORIZED:
        return page._replace(headers={"WWW-Authenticate": "Bearer"})
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        return page._replace(headers={"Retry-After": "60"})
    return page
