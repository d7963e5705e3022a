# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server would store of an object: asked strictly, by the official client.

A kubectl for each would cost a third of a second of a core, and the server as much again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kubernetes.config import new_client_from_config

from cluster.kube_things import wait_for
from cluster.kubectl import Kubectl

_SECONDS = 60.0
_NOT_TAKEN = 300
_BUSY = (429, 503)
_TRIES = 5
_AGAIN_SECONDS = 2.0
_HOW = [("dryRun", "All"), ("fieldValidation", "Strict")]
_JSON = {"Accept": "application/json", "Content-Type": "application/json"}


class Refused(RuntimeError):
    """With the words of the server."""


def stored(
    kubectl: Kubectl, objects: Iterable[Mapping[str, Any]], namespace: str = "default"
) -> list[dict[str, Any]]:
    """Refused where one is not taken, or where a field is not known."""
    server = _server(kubectl.kubeconfig)
    return [server.asked("POST", server.path(each, namespace), each) for each in objects]


@cache
def _server(kubeconfig: Path) -> _Server:
    return _Server(new_client_from_config(str(kubeconfig)))  # type: ignore[no-untyped-call]


class _Server:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._paths: dict[tuple[str, str], str] = {}

    def path(self, given: Mapping[str, Any], namespace: str) -> str:
        version, kind = given["apiVersion"], given["kind"]
        if (version, kind) not in self._paths:
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            found: list[dict[str, Any]] = []

            def is_listed() -> bool:
                found[:] = self._resources(root, kind)
                return len(found) == 1

            wait_for(is_listed, f"{kind} in {root}")  # a new CRD takes the server a moment
            inside = "/namespaces/{}" if found[0]["namespaced"] else ""
            self._paths[version, kind] = f"{root}{inside}/{found[0]['name']}"
        return self._paths[version, kind].format(given["metadata"].get("namespace", namespace))

    def _resources(self, root: str, kind: str) -> list[dict[str, Any]]:
        try:
            listed = self.asked("GET", root)["resources"]
        except Refused:
            return []
        return [each for each in listed if each["kind"] == kind and "/" not in each["name"]]

    def asked(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        request = self._client.param_serialize(
            verb, path, query_params=_HOW if body else [], header_params=_JSON, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        for left in reversed(range(_TRIES)):
            answer = self._client.call_api(*request, _request_timeout=_SECONDS)
            text = answer.read().decode()
            if answer.status not in _BUSY or not left:
                break
            time.sleep(_AGAIN_SECONDS)  # as the server asks for: it has too much to do
        if answer.status >= _NOT_TAKEN:
            raise Refused(f"{verb} {path}: {text}")
        return dict(json.loads(text))
