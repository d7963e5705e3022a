# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Asks the wrapper of a folder something, through its control socket."""

from __future__ import annotations

import json
import time
from typing import Any, Mapping

from mwatch_trainer import contract
from mwatch_trainer.socket_path import connect

MAX_LINE_BYTES = 1 << 20


def ask(directory: str, request: Mapping[str, Any], timeout: float = 5.0) -> dict[str, Any]:
    """The answer. Never raises: what went wrong is `{"ok": False, "error": TEXT}`."""
    try:
        answer = json.loads(_answer(directory, request, timeout).decode("utf-8"))
    except FileNotFoundError:
        return _failed("there is no wrapper: no control socket")
    except ConnectionRefusedError:
        return _failed("the wrapper has ended")
    except (TimeoutError, OSError) as error:  # socket.timeout is no TimeoutError before 3.10
        return _failed(error.strerror or f"no answer within {timeout:g} s")
    except (ValueError, RecursionError):
        return _failed("the answer cannot be read")
    return answer if isinstance(answer, dict) else _failed("the answer is no object")


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
