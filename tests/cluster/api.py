# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked twice a second, by the official client: each kubectl costs a tenth of a second of
a core before it asks anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.config import new_client_from_config
from kubernetes.stream import stream
from urllib3.exceptions import HTTPError
from websocket import WebSocketException

from cluster.kubectl import KubectlFailed

_SECONDS = 30.0
_TRIES = 3
_AGAIN_SECONDS = 1.0
_FAILURES = (ApiException, HTTPError, WebSocketException)
_NOT_THERE = (400, 404)
"""The answers where a pod or its log is not there, or not yet."""


class Api:
    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._kubeconfig = str(kubeconfig)
        self._namespace = namespace
        self._core = _client(self._kubeconfig)

    def pods(self) -> list[dict[str, Any]]:
        return list(json.loads(self._text(self._core.list_namespaced_pod))["items"])

    def log(self, pod: str, container: str, lines: int) -> str:
        """Empty where there is none."""
        ask = self._core.read_namespaced_pod_log
        try:
            return self._text(ask, pod, container=container, tail_lines=lines)
        except KubectlFailed:
            return ""

    def run(self, pod: str, script: str) -> str:
        """What a shell in that pod prints; KubectlFailed where it cannot be asked."""
        return _asked(lambda: self._run(pod, script))

    def _run(self, pod: str, script: str) -> str:
        # A client of its own: `stream` changes the one it is given.
        core = _client(self._kubeconfig)
        socket = stream(
            core.connect_get_namespaced_pod_exec,
            pod,
            self._namespace,
            command=["sh", "-c", script],
            stdout=True,
            stderr=False,
            stdin=False,
            tty=False,
            _request_timeout=_SECONDS,
            _preload_content=False,
        )
        socket.run_forever(timeout=_SECONDS)
        is_over = not socket.is_open()
        said: str = socket.read_all()
        socket.close()
        socket.sock.shutdown()  # which `close` leaves out where the other end has closed
        if not is_over:
            raise ApiException(reason=f"it does not end within {_SECONDS:.0f} s: {script}")
        return said

    def _text(self, ask: Any, *words: str, **settings: Any) -> str:
        given = {"_preload_content": False, "_request_timeout": _SECONDS, **settings}
        return _asked(
            lambda: bytes(ask(*words, self._namespace, **given).data).decode(errors="replace")
        )


def _asked(ask: Callable[[], str]) -> str:
    """A busy API server or node may leave a question unanswered: it is asked again."""
    left = _TRIES
    while True:
        left -= 1
        try:
            return ask()
        except _FAILURES as error:
            if not left or getattr(error, "status", None) in _NOT_THERE:
                raise KubectlFailed(str(error)[:2000]) from error
        time.sleep(_AGAIN_SECONDS)


def _client(kubeconfig: str) -> CoreV1Api:
    return CoreV1Api(new_client_from_config(config_file=kubeconfig))  # type: ignore[no-untyped-call]
