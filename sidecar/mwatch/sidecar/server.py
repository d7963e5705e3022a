# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a sidecar listens: its pages on a port, and the file on the volume that names that port.

`sidecar.json` on the shared volume: where the sidecar of this pod listens, and who it is.

The port moves on when it is taken, so whoever looks for the sidecar reads it here. The volume may
come later than we do, or be emptied: it is written again where it is not there.

Evidence for whoever asks over HTTP: a bundle now, the list of those there are, one of them.

One bundle at a time: who asks while one is being made gets that one. A bundle is there when its
manifest is, which is written last.

A restart in place: the wrapper ends its trainer and starts the next attempt in the same pod.

The wrapper decides whether it may be: in act only, of the attempt that is named only, and once.

A restart in place for whoever asks over HTTP: first whether it may be, then evidence, then it.

Evidence that somebody has just asked for is not made twice: who knows that says so.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mwatch import __version__
from mwatch.config.sidecar import DEFAULT_HOST, SidecarSettings
from mwatch.errors import InputError
from mwatch.evidence.collector import EvidenceCase, EvidenceCollector
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.export.http.server import Pages, Server, in_url
from mwatch.model.incident import bundle_id, is_incident_id
from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask
from mwatch_trainer.evidence.incident_dirs import MANIFEST, folder_bytes

NAME = "sidecar.json"


class SidecarFile:
    def __init__(self, volume: Path, document: Mapping[str, Any]) -> None:
        self._path = volume / NAME
        self._document = document
        self.is_written = False
        self.problem: str | None = None

    def keep(self) -> None:
        """Cheap while it is there."""
        if self._path.exists() and self.problem is None and self.is_written:
            return
        try:
            contract.write_json(str(self._path), self._document)
            self.is_written, self.problem = True, None
        except FileNotFoundError:
            self.is_written, self.problem = False, None  # there is no volume yet
        except OSError as error:
            self.problem = f"{self._path}: cannot be written ({error.strerror or error})"

    def remove(self) -> None:
        if self.is_written:
            self._path.unlink(missing_ok=True)


_KEEP_SECONDS = 10.0
_IPV4 = "0.0.0.0"


class SidecarPages:
    def __init__(self, settings: SidecarSettings, pages: Pages, now: float) -> None:
        """InputError where no port can be had."""
        self._settings = settings
        try:
            self._server = _bound(settings, pages)
        except OSError as error:
            words = f"cannot listen on {settings.host} port {settings.port}: {error.strerror}"
            raise InputError(f"{words}; name another with --port or --host") from None
        self._file = SidecarFile(settings.dir, self._document(now))
        self._file.keep()
        self._keep_at = time.monotonic()

    @property
    def where(self) -> str:
        return f"http://{in_url(self._settings.host)}:{self._server.port}"

    @property
    def failures(self) -> int:
        """Requests that a page could not answer."""
        return self._server.failures

    def keep_file(self) -> str | None:
        """Now and then; returns a problem that is new."""
        now = time.monotonic()
        if now < self._keep_at:
            return None
        before = self._file.problem
        self._file.keep()
        self._keep_at = now + (_KEEP_SECONDS if self._file.is_written else 0.0)
        return self._file.problem if self._file.problem != before else None

    def close(self) -> None:
        self._server.close()
        with suppress(OSError):
            self._file.remove()

    def _document(self, now: float) -> dict[str, object]:
        return {
            "port": self._server.port,
            "pid": os.getpid(),
            "run": self._settings.run,
            "pod": self._settings.pod,
            "started_at": now,
            "mwatch": __version__,
        }


def _bound(settings: SidecarSettings, pages: Pages) -> Server:
    try:
        return Server(pages, port=settings.port, host=settings.host)
    except OSError:
        if settings.host != DEFAULT_HOST:
            raise
    return Server(pages, port=settings.port, host=_IPV4)  # there is no IPv6 here


WORD = "asked"
_LIST_SECONDS = 5.0
_MAX_MANIFEST_BYTES = 1 << 20


class EvidenceApi:
    def __init__(
        self,
        collector: EvidenceCollector,
        files: IncidentFiles,
        now: Callable[[], float],
        running: Callable[[], int],
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """`running`: the number of the attempt that runs now. `asked`: called when evidence is
        asked for, which is done before something is decided."""
        self._collector = collector
        self._files = files
        self._now = now
        self._running = running
        self._asked = asked
        self._lock = threading.Lock()
        self._case: EvidenceCase | None = None
        self._listing = threading.Lock()
        self._listed: list[Mapping[str, Any]] = []
        self._listed_at = -_LIST_SECONDS

    def ask(self, reason: str) -> str | None:
        """The id of the bundle that is being made."""
        self._asked()
        with self._lock:
            if self._case is None or self._case.saved.is_set():
                attempt = self._running()
                id = bundle_id(self._now(), attempt, WORD, self._files.names())
                self._files.prune(keep=id)
                folder = self._files.folder(id)
                self._case = self._collector.want(id, folder, attempt, reason)
            return self._case.id

    def manifest(self, id: str, wait_seconds: float) -> Mapping[str, Any] | None:
        with self._lock:
            case = self._case
        if case is not None and case.id == id and not case.saved.wait(wait_seconds):
            return None
        folder = self.folder(id)
        return None if folder is None else _manifest(folder)

    def listing(self) -> list[Mapping[str, Any]]:
        """Names and sizes, the oldest first. Anybody may ask: so not each time anew, and where the
        storage hangs only one waits for it."""
        if self._listing.acquire(blocking=False):
            try:
                if time.monotonic() - self._listed_at >= _LIST_SECONDS:
                    self._listed = [self._about(id) for id in self._files.names()]
                    self._listed_at = time.monotonic()
            finally:
                self._listing.release()
        return self._listed

    def folder(self, id: str) -> Path | None:
        """Of one that is finished."""
        if not is_incident_id(id):
            return None
        folder = self._files.folder(id)
        return folder if (folder / MANIFEST).is_file() else None

    def _about(self, id: str) -> Mapping[str, Any]:
        folder = self._files.folder(id)
        is_there = (folder / MANIFEST).is_file()
        state = "there" if is_there else "not there"
        return {"id": id, "state": state, "bytes": folder_bytes(str(folder))}


def _manifest(folder: Path) -> Mapping[str, Any] | None:
    try:
        with (folder / MANIFEST).open("rb") as file:
            found = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""A request to the wrapper's control socket, and how long its answer may take."""
_ASK_SECONDS = 5.0
_KINDS = {each.value: each for each in RestartOutcome}


def restart_in_place(ask: Ask, order: RestartOrder, *, is_check: bool = False) -> RestartAnswer:
    """`is_check`: only whether it could be done. Never raises for what the wrapper does."""
    request: dict[str, Any] = {
        "op": "restart",
        "attempt": order.attempt,
        "reason": f"{order.who}: {order.reason}",
        "grace_seconds": order.grace_seconds,
        "save": order.with_save,
        "check": is_check,
    }
    if order.resume_from is not None:
        request["resume_from"] = order.resume_from
    try:
        answer = ask(request, _ASK_SECONDS)
    except (OSError, ValueError) as error:
        return RestartAnswer(RestartOutcome.UNREACHABLE, f"the wrapper did not answer: {error}")
    running = answer.get("attempt")
    attempt = running if isinstance(running, int) else None
    if answer.get("ok") is True:
        if answer.get("already") is True:
            words = f"attempt {order.attempt} was asked to restart before"
            return RestartAnswer(RestartOutcome.ALREADY, words, attempt)
        return RestartAnswer(RestartOutcome.ACCEPTED, attempt=attempt)
    return RestartAnswer(_outcome(answer), str(answer.get("error"))[:500], attempt)


def _outcome(answer: Mapping[str, Any]) -> RestartOutcome:
    """The client of the socket gives no kind where there is no wrapper."""
    kind = answer.get("kind")
    return _KINDS.get(str(kind), RestartOutcome.UNREACHABLE)


_EVIDENCE_SECONDS = 25.0


class RestartApi:
    def __init__(self, volume: Path, evidence: EvidenceApi) -> None:
        self._volume = str(volume)
        self._evidence = evidence

    def restart(self, order: RestartOrder) -> RestartAnswer:
        """Takes as long as the evidence does."""
        could = restart_in_place(self._ask, order, is_check=True)
        if could.outcome is not RestartOutcome.ACCEPTED:
            return could
        saved = None
        if order.wants_evidence:
            saved = self._evidence.ask(f"before a restart in place by {order.who}: {order.reason}")
            if saved is not None:
                self._evidence.manifest(saved, _EVIDENCE_SECONDS)
        return restart_in_place(self._ask, order)._replace(evidence=saved)

    def _ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        return ask(self._volume, request, seconds)
