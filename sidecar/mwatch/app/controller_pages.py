# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's pages: `/v1/jobs`, one job, and a wrapper's question for its attempt.

The loop leaves what it knows at each turn, made into JSON when somebody asks. Secrets are taken
out text by text. The answer to a wrapper needs the token of its job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import orjson

from mwatch.app.controller_hands import HandsLike
from mwatch.app.controller_json import VERSION
from mwatch.app.controller_metrics import FleetMetrics
from mwatch.export.pages import standard_pages
from mwatch.export.prometheus import Exporter
from mwatch.export.request import Page, Pages, Request
from mwatch_trainer.scrub import Scrubber

_JSON = "application/json"
_BEARER = "bearer "
_POD = "mwatch-pod"
_AFTER = "mwatch-after"
_WORD = "mwatch-word"
"""Headers of a wrapper's question: which pod asks, and which attempt was its last."""
_MAX_WORD = 100


class ControllerPages:
    def __init__(
        self,
        namespace: str,
        metrics: FleetMetrics,
        hands: HandsLike,
        is_leader: Callable[[], bool],
    ) -> None:
        self._namespace = namespace
        self._metrics = metrics
        self._hands = hands
        self._is_leader = is_leader
        self._lock = threading.Lock()
        self._jobs: list[dict[str, Any]] = []

    def looked(self, jobs: list[dict[str, Any]]) -> None:
        with self._lock:
            self._jobs = jobs

    def pages(self) -> Pages:
        metrics, place = self._metrics, f"/v1/jobs/{self._namespace}"
        exporter = Exporter(
            metrics.snapshots, besides={"run_namespace": self._namespace}, own=metrics.own
        )
        return {
            **standard_pages(metrics.snapshots, metrics.since_tick, exporter),
            "/v1/jobs": self._all,
            f"{place}/{{}}": self._one,
            f"{place}/{{}}/attempt": self._attempt,
        }

    def document(self) -> dict[str, Any]:
        with self._lock:
            jobs = self._jobs
        return {
            "version": VERSION,
            "namespace": self._namespace,
            "leader": self._is_leader(),
            "jobs": jobs,
        }

    def _all(self, request: Request) -> Page:
        return _page(self.document())

    def _one(self, request: Request) -> Page:
        kind = parse_qs(request.query).get("kind", [""])[0]
        with self._lock:
            found = [
                each
                for each in self._jobs
                if each["name"] == request.parameter and kind in ("", each["kind"])
            ]
        if not found:
            return _error(f"no watched job {request.parameter} in {self._namespace}")
        return _page({"version": VERSION, **found[0]})

    def _attempt(self, request: Request) -> Page:
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = self._hands.answer(
            self._namespace, request.parameter, _token(headers),
            pod=headers.get(_POD, ""), after=_number(headers.get(_AFTER, "")),
            word=headers.get(_WORD, "")[:_MAX_WORD],
        )  # fmt: skip
        if answer is None:
            return _error(f"nothing to say of {request.parameter} to who asks")
        return Page(orjson.dumps(answer), _JSON)


def _token(headers: Mapping[str, str]) -> str:
    given = headers.get("authorization", "")
    return given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else ""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _error(words: str) -> Page:
    return Page(f"{words}\n".encode(), status=HTTPStatus.NOT_FOUND)


def _page(document: dict[str, Any]) -> Page:
    data = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    if Scrubber().scrub(data) != data:
        data = orjson.dumps(_scrubbed(document), option=orjson.OPT_NON_STR_KEYS)
    return Page(data, _JSON)


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return Scrubber().text(value)
    if isinstance(value, dict):
        return {str(key): _scrubbed(each) for key, each in value.items()}
    return [_scrubbed(each) for each in value] if isinstance(value, list | tuple) else value
