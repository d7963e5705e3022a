# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Address and credentials of the API server: from a kubeconfig, or from a pod's service account.

The official package reads the configuration and runs credential plugins; `kube.access` makes the
calls. A plugin that hangs is abandoned after a time limit, but cannot be ended from here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes.config
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException

from mwatch.kube.errors import NoCluster, NoCredentials

_config: Any = kubernetes.config  # its functions have no types
_CONFIG_SECONDS = 30.0
_CONNECTIONS = 32
_NAMES = 8
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_IN_POD = "KUBERNETES_SERVICE_HOST"
_FIX = "set KUBECONFIG, or give --kubeconfig FILE and --context NAME"


@dataclass(frozen=True, slots=True)
class Connection:
    host: str
    pool: Any
    """A pool manager of urllib3; safe to use from several threads."""
    authorization: Callable[[], str | None]
    """The current value of the header: the official package renews tokens."""
    namespace: str

    def close(self) -> None:
        self.pool.clear()


def connect(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    config_seconds: float = _CONFIG_SECONDS,
) -> Connection:
    """Raises NoCluster or NoCredentials, whose message names the fix. Sends nothing to the API
    server yet."""
    given = kubeconfig or environ.get("KUBECONFIG")
    default = Path(environ.get("HOME", "/")) / ".kube" / "config"
    if given is None and context is None and _IN_POD in environ and not default.is_file():
        try:
            return _connection(_config.load_incluster_config, _pod_namespace(), config_seconds)
        except NoCluster as error:
            raise NoCluster(f"this pod has no usable service account: {error}") from None
    file = given or str(default)
    if not any(os.path.isfile(each) for each in file.split(os.pathsep)):
        raise NoCluster(f"no cluster: file {file} does not exist; {_FIX}")
    namespace = _named_namespace(file, context)
    load = partial(
        _config.load_kube_config, config_file=file, context=context, persist_config=False
    )
    return _connection(load, namespace, config_seconds)


def _connection(load: Callable[..., None], namespace: str, seconds: float) -> Connection:
    target = Configuration()
    target.connection_pool_maxsize = _CONNECTIONS
    target.retries = False
    problem = _within_limit(lambda: load(client_configuration=target), seconds)
    if problem:
        raise NoCredentials(f"no credentials for {target.host}: {problem}; log in again")
    rest = RESTClientObject(target)

    def authorization() -> str | None:
        found = target.auth_settings().get("BearerToken")
        return None if found is None else str(found["value"])

    return Connection(str(target.host).rstrip("/"), rest.pool_manager, authorization, namespace)


class _ErrorRecorder(logging.Handler):
    """The package only logs why a credential plugin failed, and continues without credentials."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(_one_line(record.getMessage()))


def _within_limit(work: Callable[[], None], seconds: float) -> str:
    """Run `work` within the time limit. Return why it failed; empty: it succeeded."""
    recorder, failed = _ErrorRecorder(), list[BaseException]()

    def guarded() -> None:
        try:
            work()
        except Exception as error:  # from the package, YAML or files: reported below
            failed.append(error)

    root = logging.getLogger()
    root.addHandler(recorder)
    try:
        thread = threading.Thread(target=guarded, name="mwatch-kubeconfig", daemon=True)
        thread.start()
        thread.join(seconds)
    finally:
        root.removeHandler(recorder)
    if thread.is_alive():
        return f"no answer within {seconds:.0f} s"
    if failed and isinstance(failed[0], ConfigException):
        raise NoCluster(f"no cluster: {_one_line(failed[0])}; {_FIX}")
    if failed:
        raise NoCluster(f"unusable configuration: {_one_line(failed[0])}; {_FIX}")
    return "; ".join(recorder.messages)[:300]


def _named_namespace(file: str, context: str | None) -> str:
    try:
        contexts, active = _config.list_kube_config_contexts(config_file=file)
    except Exception:  # reported when the file is loaded
        return "default"
    if context is not None and all(each.get("name") != context for each in contexts):
        known = ", ".join(str(each.get("name")) for each in contexts[:_NAMES]) or "none"
        raise NoCluster(f"no cluster: {file} has no context {context} (there are: {known}); {_FIX}")
    chosen = next((each for each in contexts if each.get("name") == context), active)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def _pod_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text("utf-8").strip() or "default"
    except OSError:
        return "default"


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
