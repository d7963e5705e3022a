# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch ui JOB`: serves the pages of a controller or sidecar on this machine via the API server.

Each request becomes one request to the proxy of the API server, so `get` on `services/proxy` and
`pods/proxy` is sufficient, as for `mwatch diagnose`, and there is no long-lived connection to
break. Only the pages for users are forwarded, and only GET requests. If the pod of a sidecar
disappears, the pages of the job are located again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl

from mwatch.diagnose.job import JobRequest, diagnose_with
from mwatch.diagnose.job_page import controller_port, culprit_pod, sidecars_by_worth
from mwatch.errors import MwatchError
from mwatch.export.http.server import Page, Pages, Request
from mwatch.kube.access import Access, PageResponse
from mwatch.kube.errors import KubeError, NoCredentials, NoPermission, Rejected, Unavailable
from mwatch.kube.jobs import parse_job_name, watched_jobs
from mwatch.kube.pod_pages import Port
from mwatch.kube.resources import PODS
from mwatch.watch.page import foreign, unavailable

_CALL_SECONDS = 8.0
"""Shorter than the time limit of the local server."""
_FIRST_SECONDS = 8.0
_LOOK_SECONDS = 10.0
_MAX_NAMES = 8
_KEPT_HEADERS = ("Content-Security-Policy", "Cache-Control", "Referrer-Policy", "Retry-After")
_NO_SCRIPTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
"""Policy for a page without one: such a page does not come from mwatch."""


class Found(NamedTuple):
    port: Port
    path: str
    """Path of the page to open."""
    text: str
    """Describes the source of the page."""

    @property
    def is_sidecar(self) -> bool:
        return self.port.resource is PODS


def find_pages(access: Access, request: JobRequest) -> Found:
    """Find the controller's page of the job, else a sidecar's; with an empty name, the fleet page.

    InputError if there is no such job, KubeError if neither responds."""
    namespace = request.namespace or access.namespace
    kind, name = parse_job_name(request.name)
    path = f"/jobs/{namespace}/{name}" if name else "/"
    path += f"?kind={kind.value}" if kind else ""
    try:
        port = controller_port(namespace)
        _first_page(access, port, path)
        return Found(port, path, f"the controller of namespace {namespace}")
    except NoCredentials:
        raise
    except KubeError as error:
        if not name:
            raise _no_controller(access, namespace, error) from None
        return find_sidecar(access, request, str(error))


def find_sidecar(access: Access, request: JobRequest, reason: str = "") -> Found:
    """Find the culprit's sidecar, else the best informed. `reason`: why not the controller."""
    job = diagnose_with(access, request, time.time())
    sidecars = sidecars_by_worth(job)
    sidecars.sort(key=lambda each: each[0].pod.name != culprit_pod(job))
    problem = next((each.sidecar for each in job.pods if each.sidecar), "it has no sidecars")
    for each, port in sidecars[:_MAX_NAMES]:
        try:
            _first_page(access, port, "/")
        except KubeError as error:
            problem = f"{each.pod.name}: {error}"
            continue
        why = f"the sidecar of pod {each.pod.name}, which sees this pod only"
        return Found(port, "/", f"{why}; the controller has no page: {reason}")
    name, namespace = job.facts.job.name, job.facts.job.namespace
    fix = f"'mwatch report {name} -n {namespace}' makes a page of the logs"
    raise Unavailable(
        f"neither the controller nor a sidecar of {name} shows a page: {problem}; {fix}"
    )


def _no_controller(access: Access, namespace: str, error: KubeError) -> KubeError:
    if isinstance(error, NoPermission):
        return error
    known = sorted(each.name for each in watched_jobs(access, namespace).jobs)[:_MAX_NAMES]
    fix = f"name a job: {', '.join(known)}" if known else "no job is watched there either"
    return Unavailable(f"no controller in namespace {namespace} shows a page ({error}); {fix}")


def _first_page(access: Access, port: Port, path: str) -> None:
    answer = access.response(f"{port.path}{path}", None, _FIRST_SECONDS)
    if not answer.headers.get("Content-Type", "").startswith("text/html"):
        raise Rejected(f"{port.name}:{port.number}{path} is not a page of mwatch")


class Forward:
    """Answers requests of local browsers; called from the threads of a server."""

    def __init__(
        self,
        access: Access,
        found: Found,
        look_again: Callable[[], Found] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look_again`: locates the pages again after their pod has disappeared."""
        self._access = access
        self._port = found.port
        self._look_again = look_again
        self._looking = threading.Lock()
        self._looked_at = clock()
        self._clock = clock

    def pages(self) -> Pages:
        job = f"/jobs/{self._port.namespace}/{{}}"
        paths = ("/", "/page.json", "/story.json", job, f"{job}/page.json", f"{job}/story.json")
        return dict.fromkeys(paths, self._page)

    def _page(self, request: Request) -> Page:
        if (refused := foreign(request)) is not None:
            return refused
        port, query = self._port, dict(parse_qsl(request.query))
        try:
            answer = self._access.response(f"{port.path}{request.path}", query, _CALL_SECONDS)
        except Rejected as error:
            self._find_again(port)
            return Page(f"{error}\n".encode(), status=HTTPStatus.NOT_FOUND)
        except KubeError as error:
            self._find_again(port)
            return unavailable(str(error))
        return _passed_on(answer, port)

    def _find_again(self, lost: Port) -> None:
        """Locate the pages again, rate-limited and in one thread; this request fails anyway."""
        if self._look_again is None or not self._looking.acquire(blocking=False):
            return
        try:
            if self._port is lost and self._clock() - self._looked_at >= _LOOK_SECONDS:
                self._looked_at = self._clock()
                self._port = self._look_again().port
        except MwatchError:
            return  # the next request tries again
        finally:
            self._looking.release()


def _passed_on(answer: PageResponse, port: Port) -> Page:
    kind = answer.headers.get("Content-Type", "text/plain; charset=utf-8")
    headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    if not kind.startswith("text/html"):
        return Page(answer.data, kind, headers=headers)
    # The API server prefixes the links of a page with its own path.
    data = answer.data.replace(f'"{port.path}/'.encode(), b'"/')
    return Page(data, kind, headers={"Content-Security-Policy": _NO_SCRIPTS, **headers})
