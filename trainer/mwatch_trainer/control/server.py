# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper's control socket: one JSON object per line, one answer each.

Requests: `status`, `dump` (evidence of every rank), `keep` (copy an incident's evidence beside the
checkpoints), `stop` and `restart` (in place, act mode only). `stop` is answered immediately; when
the trainer has ended, the wrapper exits. A client that sends nothing, or too much, is disconnected
after a few seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections import deque
from typing import Any, Callable, Mapping

from mwatch_trainer import contract
from mwatch_trainer.control.client import listen, short_path
from mwatch_trainer.evidence.dumps import BadName, Dumps
from mwatch_trainer.evidence.incidents import EvidenceOffload, NotCopied
from mwatch_trainer.processes.signals import RESTART, STOP, ControlRequest, RequestQueue
from mwatch_trainer.scrub.scrubber import scrub_text

_MAX_NUMBER = 10**12
_REMEMBERED = 64


class RequestRefused(ValueError):
    """The request cannot be served; `details` are part of the answer."""

    def __init__(self, text: str, **details: Any) -> None:
        super().__init__(text)
        self.details = {name: value for name, value in details.items() if value is not None}


class Restarts:
    """Restarts in place: only in act mode, and once per attempt.

    A request that names the attempt to end is harmless if repeated or late. A checkpoint to resume
    from is written to `decision.json`, which the next attempt reads after asking the controller.
    """

    def __init__(
        self,
        directory: str,
        mode: str,
        requests: RequestQueue,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._directory, self._mode = directory, mode
        self._requests, self._status = requests, status
        self._requested: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def request(self, request: Mapping[str, Any], reason: str, grace: float) -> dict[str, Any]:
        """Queue the restart. Raises RequestRefused, and OSError if the choice cannot be written."""
        if self._mode != contract.ACT:
            raise RequestRefused("a restart in place needs --act", kind="observing")
        wanted = _count(request, "attempt")
        resume_from = _count(request, "resume_from")
        with self._lock:
            current = self._status().get("attempt")
            if wanted is not None and wanted in self._requested:
                return {"accepted": RESTART, "already": True, "attempt": current}
            self._check(wanted, current)
            answer = {"accepted": RESTART, "attempt": current, "grace_seconds": grace}
            if request.get("check") is True:
                return {**answer, "accepted": None}
            if resume_from is not None:
                self._write_choice(current, resume_from, reason)
            if wanted is not None:
                self._requested.append(wanted)
            with_save = request.get("save") is True
            self._requests.put(ControlRequest(RESTART, reason, grace, with_save, wanted))
        return answer

    def _check(self, wanted: int | None, current: Any) -> None:
        if wanted is None:
            return
        if wanted != current:
            text = f"attempt {wanted} is not running: the current one is {current}"
            raise RequestRefused(text, kind="wrong-attempt", attempt=current)
        if not self._status().get("is_running"):
            text = f"attempt {wanted} has ended by itself"
            raise RequestRefused(text, kind="not-running", attempt=current)

    def _write_choice(self, current: Any, resume_from: int, reason: str) -> None:
        if not isinstance(current, int):
            raise RequestRefused("no attempt has started", kind="not-running")
        choice = {"attempt": current + 1, "resume_from": resume_from, "reason": reason}
        contract.write_json(os.path.join(self._directory, contract.DECISION), choice)


def _count(request: Mapping[str, Any], name: str) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise RequestRefused(f"{name} must be a number from 0 on", kind="refused")
    return value


MAX_REQUEST_BYTES = 1 << 16
_MAX_CLIENTS = 8
_CLIENT_SECONDS = 5.0
_DEFAULT_GRACE_SECONDS = 30.0
_MAX_GRACE_SECONDS = 3600.0
_DEFAULT_DUMP_SECONDS = 5.0
_MAX_DUMP_SECONDS = 60.0
_DEFAULT_COPY_SECONDS = 5.0
# In a pod only the pod's containers see the volume, and the sidecar may run as another user.
_MODE_ALONE, _MODE_IN_POD = 0o600, 0o666


class ControlServer:
    def __init__(
        self,
        directory: str,
        mode: str,
        requests: RequestQueue,
        dumps: Dumps,
        offload: EvidenceOffload,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._directory, self._requests = directory, requests
        self._dumps, self._offload, self._status = dumps, offload, status
        self._restarts = Restarts(directory, mode, requests, status)
        self._clients = threading.Semaphore(_MAX_CLIENTS)
        self._server: socket.socket | None = None
        self._inode = 0
        with contextlib.suppress(OSError):
            in_pod = os.getpid() == 1 or "KUBERNETES_SERVICE_HOST" in os.environ
            mode_bits = _MODE_IN_POD if in_pod else _MODE_ALONE
            self._server = listen(directory, contract.CONTROL, mode_bits)
            self._inode = os.stat(os.path.join(directory, contract.CONTROL)).st_ino
            threading.Thread(target=self._run, name="mwatch-control", daemon=True).start()

    def close(self) -> None:
        """Remove the socket, unless a later wrapper has replaced it with its own."""
        if self._server is None:
            return
        self._server.close()
        folder = self._directory
        with contextlib.suppress(OSError), short_path(folder, contract.CONTROL) as path:
            if os.lstat(path).st_ino == self._inode:
                os.unlink(path)

    def answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line.decode("utf-8"))
            if not isinstance(request, dict):
                raise RequestRefused("the request is not an object")
            return {"ok": True, **self._serve_request(request)}
        except RequestRefused as error:
            return {"ok": False, "error": str(error), **error.details}
        except (BadName, NotCopied) as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, RecursionError):
            return {"ok": False, "error": "the request is not JSON"}
        except OSError as error:
            return {"ok": False, "error": error.strerror or str(error)}

    def _serve_request(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        op = request.get("op")
        if op == "status":
            return self._status()
        if op == "dump":
            seconds = _number(request, "seconds", _DEFAULT_DUMP_SECONDS, _MAX_DUMP_SECONDS)
            return self._dumps.take(_text(request, "id", ""), seconds)
        if op == "keep":
            seconds = _number(request, "seconds", _DEFAULT_COPY_SECONDS, _MAX_DUMP_SECONDS)
            return self._offload.copy(_text(request, "id", ""), seconds)
        if op in (STOP, RESTART):
            grace = _number(request, "grace_seconds", _DEFAULT_GRACE_SECONDS, _MAX_GRACE_SECONDS)
            reason = scrub_text(_text(request, "reason", "no reason was given"))[:500]
            if op == RESTART:
                return self._restarts.request(request, reason, grace)
            self._requests.put(ControlRequest(op, reason, grace, request.get("save") is True))
            return {"accepted": op, "grace_seconds": grace}
        raise RequestRefused(
            f"unknown op {str(op)[:40]!r}; there are status, dump, keep, stop, restart"
        )

    def _run(self) -> None:
        server = self._server
        while server is not None:
            try:
                client, _ = server.accept()
            except OSError:
                return
            if not self._clients.acquire(blocking=False):
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError):
                client.settimeout(_CLIENT_SECONDS)
                data = b""
                while len(data) <= MAX_REQUEST_BYTES:
                    line, newline, rest = data.partition(b"\n")
                    if newline:
                        data = rest
                        client.sendall(json.dumps(self.answer(line)).encode() + b"\n")
                        continue
                    chunk = client.recv(1 << 14)
                    if not chunk:
                        return
                    data += chunk
                client.sendall(b'{"ok": false, "error": "the request is too long"}\n')
        finally:
            self._clients.release()


def _number(request: Mapping[str, Any], name: str, default: float, most: float) -> float:
    value = request.get(name, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:
        raise RequestRefused(f"{name} must be between 0 and {most:g}")
    return float(value)


def _text(request: Mapping[str, Any], name: str, default: str) -> str:
    value = request.get(name, default)
    if not isinstance(value, str):
        raise RequestRefused(f"{name} must be a text")
    return value
