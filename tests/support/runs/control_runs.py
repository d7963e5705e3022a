# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The control pages of a sidecar over a volume: a real server, and a client with the token."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.evidence.collector import EvidenceCollector, OffPod
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.export.http.control import control_pages
from mwatch.export.http.server import Server
from mwatch.sidecar.server import EvidenceApi, restart_with_evidence
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask
from mwatch_trainer.evidence.incidents import INCIDENTS, VOLUME_BYTES

TOKEN = "0123456789abcdef-of-the-job"
WAIT = 60.0


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Client(NamedTuple):
    port: int
    token: str | None = TOKEN

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def post(self, path: str, **body: Any) -> Answer:
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)) as wire:
            wire.request(method, path, body, headers)
            got = wire.getresponse()
            return Answer(got.status, got.read(), dict(got.headers))


@contextmanager
def controlled(volume: Path, token_file: Path | None) -> Iterator[Client]:
    """As the sidecar of a pod wires it."""

    def state() -> dict[str, Any]:
        return contract.read_json(str(volume / contract.ATTEMPT)) or {}

    def running() -> int:
        return int(state().get("attempt", 0))

    def save() -> Path | None:
        found = state().get("save")
        return None if found is None else Path(found)

    off_pod = OffPod(
        lambda request, seconds: ask(str(volume), request, seconds),
        save,
        lambda: state().get("mode") == contract.ACT,
    )
    collector = EvidenceCollector(volume, "pod-0", time.time, running, off_pod=off_pod)
    files = IncidentFiles(volume / INCIDENTS, max_bytes=VOLUME_BYTES)
    evidence = EvidenceApi(collector, files, time.time, running)
    restart = partial(restart_with_evidence, volume, evidence)
    server = Server(control_pages(token_file, evidence, restart), port=0)
    try:
        yield Client(server.port)
    finally:
        server.close()
        collector.close()


def token_file(folder: Path, text: str = TOKEN) -> Path:
    file = folder / "token"
    file.write_text(text + "\n", "utf-8")
    return file
