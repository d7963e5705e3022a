# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Client of the wrapper's control socket; supports socket paths longer than 108 bytes."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import contextmanager, suppress
from typing import Any, Iterator, Mapping

from mwatch_trainer import contract


@contextmanager
def short_path(folder: str, name: str) -> Iterator[str]:
    """Yield a short path to the file, valid inside the block. Raises OSError."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def listen(folder: str, name: str, mode: int) -> socket.socket:
    """Listen; replace a socket left by an earlier process. Raises OSError."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(folder, name) as path:
            with suppress(FileNotFoundError):
                os.unlink(path)
            server.bind(path)
            os.chmod(path, mode)
        server.listen(8)
    except OSError:
        server.close()
        raise
    return server


def connect(folder: str, name: str, seconds: float) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(seconds)
    try:
        with short_path(folder, name) as path:
            client.connect(path)
    except OSError:
        client.close()
        raise
    return client


MAX_LINE_BYTES = 1 << 20


def ask(directory: str, request: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """Return the answer to a request. Never raises: a failure is `{"ok": False, "error": TEXT}`."""
    try:
        answer = json.loads(_answer(directory, request, timeout).decode("utf-8"))
    except FileNotFoundError:
        return _failed("there is no wrapper: no control socket")
    except ConnectionRefusedError:
        return _failed("the wrapper has ended")
    except (TimeoutError, OSError) as error:  # socket.timeout is not a TimeoutError before 3.10
        return _failed(error.strerror or f"no answer within {timeout:g} s")
    except (ValueError, RecursionError):
        return _failed("the answer cannot be read")
    return answer if isinstance(answer, dict) else _failed("the answer is not an object")


def _answer(directory: str, request: Mapping[str, Any], timeout: float) -> bytes:
    until = time.monotonic() + timeout
    data = b""
    with connect(directory, contract.CONTROL, timeout) as client:
        client.sendall(json.dumps(dict(request)).encode() + b"\n")
        while b"\n" not in data and len(data) <= MAX_LINE_BYTES:
            client.settimeout(max(until - time.monotonic(), 0.001))
            chunk = client.recv(1 << 16)
            if not chunk:
                break
            data += chunk
    return data


def _failed(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}
