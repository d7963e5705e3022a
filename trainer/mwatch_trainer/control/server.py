# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper's control socket: one JSON object a line, one answer each.

`status`, `dump` (evidence of every rank now), `keep` (evidence of an incident, beside the
checkpoints), `stop` and `restart` (in place, only in act). Answers at once to `stop`: that the
trainer has ended is seen by the end of the wrapper. A caller that says nothing, or too much, is
left after some seconds.

A restart in place, asked for over the control socket: only in act, and once per attempt.

Whoever names the attempt that is to end can ask again, or late, and harms nothing: the attempt
after it is another one. A checkpoint to resume from is written as `decision.json`, which the next
attempt reads after it has asked the controller.
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
from mwatch_trainer.control_requests import RESTART, STOP, Asks, ControlRequest
from mwatch_trainer.evidence.bundle_copy import NotCopied
from mwatch_trainer.evidence.dumps import BadName, Dumps
from mwatch_trainer.evidence.offload import Keeping
from mwatch_trainer.scrub.scrubber import scrub_text

_MAX_NUMBER = 10**12
_REMEMBERED = 64


class CannotRestart(ValueError):
    def __init__(self, kind: str, text: str, attempt: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.attempt = attempt


class Restarts:
    def __init__(
        self, directory: str, mode: str, asks: Asks, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._directory, self._mode = directory, mode
        self._asks, self._status = asks, status
        self._asked: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, Any], reason: str, grace: float) -> dict[str, Any]:
        """Raises CannotRestart, and OSError where the choice cannot be written."""
        if self._mode != contract.ACT:
            raise CannotRestart("observing", "a restart in place needs --act")
        wanted = _count(request, "attempt")
        resume_from = _count(request, "resume_from")
        with self._lock:
            current = self._status().get("attempt")
            if wanted is not None and wanted in self._asked:
                return {"accepted": RESTART, "already": True, "attempt": current}
            self._check(wanted, current)
            answer = {"accepted": RESTART, "attempt": current, "grace_seconds": grace}
            if request.get("check") is True:
                return {**answer, "accepted": None}
            if resume_from is not None:
                self._write_choice(current, resume_from, reason)
            if wanted is not None:
                self._asked.append(wanted)
            self._asks.put(
                ControlRequest(RESTART, reason, grace, request.get("save") is True, wanted)
            )
        return answer

    def _check(self, wanted: int | None, current: Any) -> None:
        if wanted is None:
            return
        if wanted != current:
            text = f"attempt {wanted} does not run: it is {current}"
            raise CannotRestart("wrong-attempt", text, current)
        if not self._status().get("is_running"):
            raise CannotRestart("not-running", f"attempt {wanted} has ended by itself", current)

    def _write_choice(self, current: Any, resume_from: int, reason: str) -> None:
        """Of the attempt after this one."""
        if not isinstance(current, int):
            raise CannotRestart("not-running", "no attempt has begun")
        choice = {"attempt": current + 1, "resume_from": resume_from, "reason": reason}
        contract.write_json(os.path.join(self._directory, contract.DECISION), choice)


def _count(request: Mapping[str, Any], name: str) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise CannotRestart("refused", f"{name} must be a number from 0 on")
    return value


MAX_REQUEST_BYTES = 1 << 16
_MAX_CALLERS = 8
_CALLER_SECONDS = 5.0
_DEFAULT_GRACE_SECONDS = 30.0
_MAX_GRACE_SECONDS = 3600.0
_DEFAULT_DUMP_SECONDS = 5.0
_MAX_DUMP_SECONDS = 60.0
_DEFAULT_KEEP_SECONDS = 5.0
# In a pod the volume is the pod's own, and the sidecar may be another user.
_MODE_ALONE, _MODE_IN_POD = 0o600, 0o666


class RequestRefused(ValueError):
    """The request cannot be served; the text is the answer."""


class Control:
    def __init__(
        self,
        directory: str,
        mode: str,
        asks: Asks,
        dumps: Dumps,
        keeping: Keeping,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.error = ""
        self._directory, self._asks = directory, asks
        self._dumps, self._keeping, self._status = dumps, keeping, status
        self._restarts = Restarts(directory, mode, asks, status)
        self._callers = threading.Semaphore(_MAX_CALLERS)
        self._server: socket.socket | None = None
        self._inode = 0
        try:
            self._server = listen(directory, contract.CONTROL, _socket_mode())
            self._inode = os.stat(os.path.join(directory, contract.CONTROL)).st_ino
        except OSError as error:
            self.error = error.strerror or str(error)
            return
        threading.Thread(target=self._run, name="mwatch-control", daemon=True).start()

    def close(self) -> None:
        """The socket goes, unless a later wrapper has put its own there."""
        if self._server is None:
            return
        self._server.close()
        folder = self._directory
        with contextlib.suppress(OSError), short_path(folder, contract.CONTROL) as path:
            if os.lstat(path).st_ino == self._inode:
                os.unlink(path)

    def answer(self, line: bytes) -> dict[str, Any]:
        """Never raises."""
        try:
            request = json.loads(line.decode("utf-8"))
            if not isinstance(request, dict):
                raise RequestRefused("the request is not an object")
            return {"ok": True, **self._served(request)}
        except CannotRestart as error:
            more = {} if error.attempt is None else {"attempt": error.attempt}
            return {"ok": False, "error": str(error), "kind": error.kind, **more}
        except (RequestRefused, BadName, NotCopied) as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, RecursionError):
            return {"ok": False, "error": "the request is not JSON"}
        except OSError as error:
            return {"ok": False, "error": error.strerror or str(error)}

    def _served(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        op = request.get("op")
        if op == "status":
            return self._status()
        if op == "dump":
            seconds = _number(request, "seconds", _DEFAULT_DUMP_SECONDS, _MAX_DUMP_SECONDS)
            return self._dumps.take(_text(request, "id", ""), seconds)
        if op == "keep":
            seconds = _number(request, "seconds", _DEFAULT_KEEP_SECONDS, _MAX_DUMP_SECONDS)
            return self._keeping.keep(_text(request, "id", ""), seconds)
        if op in (STOP, RESTART):
            grace = _number(request, "grace_seconds", _DEFAULT_GRACE_SECONDS, _MAX_GRACE_SECONDS)
            reason = scrub_text(_text(request, "reason", "no reason was given"))[:500]
            if op == RESTART:
                return self._restarts.ask(request, reason, grace)
            self._asks.put(ControlRequest(op, reason, grace, request.get("save") is True))
            return {"accepted": op, "grace_seconds": grace}
        raise RequestRefused(
            f"unknown op {str(op)[:40]!r}; there are status, dump, keep, stop, restart"
        )

    def _run(self) -> None:
        server = self._server
        while server is not None:
            try:
                caller, _ = server.accept()
            except OSError:
                return
            if not self._callers.acquire(blocking=False):
                caller.close()
                continue
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            with caller, contextlib.suppress(OSError):
                caller.settimeout(_CALLER_SECONDS)
                data = b""
                while len(data) <= MAX_REQUEST_BYTES:
                    line, newline, rest = data.partition(b"\n")
                    if newline:
                        data = rest
                        caller.sendall(json.dumps(self.answer(line)).encode() + b"\n")
                        continue
                    chunk = caller.recv(1 << 14)
                    if not chunk:
                        return
                    data += chunk
                caller.sendall(b'{"ok": false, "error": "the request is too long"}\n')
        finally:
            self._callers.release()


def _socket_mode() -> int:
    in_pod = os.getpid() == 1 or "KUBERNETES_SERVICE_HOST" in os.environ
    return _MODE_IN_POD if in_pod else _MODE_ALONE


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
