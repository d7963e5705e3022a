# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a cluster and a namespace: API server, kinds, clock, controller, Lease, network, and
whether Prometheus scrapes mwatch. Prometheus is queried at a given address, or at a Service that
has one of its usual labels.

`examine` runs all checks in one pass; a check that cannot run is a skipped line with the reason.
Only the image pull check creates an object in the cluster, so it runs only on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from mwatch import json_codec
from mwatch.diagnose.cluster_facts import CONTROLLER, CONTROLLER_PORT
from mwatch.diagnose.doctor import rights
from mwatch.diagnose.doctor.job import JobPods, check_job, check_pull, read_pods
from mwatch.diagnose.doctor.lines import (
    UNREACHABLE,
    DoctorLine,
    DoctorReport,
    names,
    ok,
    problem,
    skipped,
    unreachable,
)
from mwatch.kube.access import Access, whoami
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.jobs import find_whole, no_such_job, parse_job_name
from mwatch.kube.lease import NAME as LEASE
from mwatch.kube.pod_pages import Port, service_page
from mwatch.kube.resources import LEASES, OF_KIND, SERVICES, WORKLOADS, ApiResource
from mwatch.model.kube.fields import items, mapping, moment, number, part, text, text_map
from mwatch.runtime.fanout import gather
from mwatch.runtime.http_client import reason

_CALL_SECONDS = 4.0
_MAX_SKEW_SECONDS = 5.0
_POLICIES = ApiResource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
_INSTALL = "mwatch export charts charts/ && helm install mwatch charts/mwatch -n {namespace}"
_PODS = "kubectl get pods -n {namespace} -l app.kubernetes.io/name=mwatch-controller"
_OPEN = "mwatch export rbac rbac/, then adapt and apply rbac/network-policy.yaml"


class Kinds(NamedTuple):
    line: DoctorLine
    groups: tuple[str, ...]
    """API groups that the cluster serves in the version that mwatch reads."""


def check_kinds(access: Access) -> Kinds:
    """Check which kinds of jobs the cluster serves, and if mwatch supports their versions."""
    every = {**{kind.value: each for kind, each in OF_KIND.items()}, "Kueue": WORKLOADS}
    asks = {name: partial(_served, access, each) for name, each in every.items()}
    found = {name: str(each) for name, each in gather(asks, seconds=_CALL_SECONDS + 2).items()}
    here = [name for name in every if found[name] == "yes"]
    absent = [name for name in every if found[name] == "no"]
    other = {name: text for name, text in found.items() if text not in ("yes", "no")}
    groups = tuple({every[name].group for name in here})
    if other:
        name, why = next(iter(other.items()))
        fix = f"install {every[name].kind} {every[name].version}, or a mwatch that reads yours"
        return Kinds(problem("kinds", f"{name}: {why}", fix), groups)
    more = f"; not installed: {', '.join(absent)}" if absent else ""
    return Kinds(ok("kinds", ", ".join(here) + more), groups)


def _served(access: Access, resource: ApiResource) -> str:
    """Return `yes`, `no`, or a description of the version mismatch."""
    answer = access.call("GET", f"/apis/{resource.group}/{resource.version}")
    if answer.is_ok:
        plurals = {text(each, "name") for each in items(answer.body, "resources")}
        return "yes" if resource.plural in plurals else "no"
    group = access.call("GET", f"/apis/{resource.group}")
    versions = [text(each, "version") for each in items(group.body, "versions")]
    if not group.is_ok or not versions:
        return "no"
    return f"the cluster has {', '.join(versions)}, and mwatch reads {resource.version}"


class ServerClock(NamedTuple):
    line: DoctorLine
    ahead_seconds: float | None
    """How far the API server is ahead of this machine's clock; None: unknown."""


def check_clock(access: Access) -> ServerClock:
    """Compare clocks by the Date header, which has a resolution of one second."""
    name, began = "clock", time.time()
    try:
        page = access.response("/version", None, _CALL_SECONDS)
        date = parsedate_to_datetime(page.headers.get("Date") or "").timestamp()
    except (KubeError, ValueError) as error:
        return ServerClock(skipped(name, f"the API server gives no time: {error}"), None)
    took = time.time() - began
    ahead = date + 0.5 - (began + took / 2)
    if abs(ahead) > _MAX_SKEW_SECONDS + took / 2:
        side = "behind" if ahead > 0 else "ahead of"
        what = f"this machine is {abs(ahead):.0f} s {side} the API server"
        return ServerClock(problem(name, what, "run an NTP client here: timedatectl"), ahead)
    return ServerClock(ok(name, f"within {_MAX_SKEW_SECONDS:.0f} s of the API server"), ahead)


class ControllerState(NamedTuple):
    lines: tuple[DoctorLine, ...]
    jobs: tuple[Mapping[str, Any], ...] | None
    """Jobs as the controller reports them; None if it does not respond."""


def check_controller(access: Access, namespace: str, ahead: float | None) -> ControllerState:
    """`ahead`: seconds by which the API server's clock is ahead of ours."""
    lease = check_lease(access, namespace, time.time() + (ahead or 0.0))
    name = "controller"
    try:
        body = service_page(
            access, namespace, CONTROLLER, CONTROLLER_PORT, "/v1/jobs", seconds=_CALL_SECONDS
        )
    except NoPermission:
        line = skipped(name, "you may not get services/proxy mwatch-controller:9402")
    except KubeError as error:
        is_absent = "not found" in str(error)
        what = f"no Service {CONTROLLER} in namespace {namespace}" if is_absent else str(error)
        fix = _INSTALL if is_absent else _PODS
        line = problem(name, what, fix.format(namespace=namespace))
    else:
        jobs = tuple(items(body, "jobs"))
        return ControllerState((ok(name, f"answers and watches {len(jobs)} jobs"), lease), jobs)
    return ControllerState((line, lease), None)


def check_lease(access: Access, namespace: str, now: float) -> DoctorLine:
    """Check that the controller's Lease is held. `now`: time by the API server's clock."""
    name, fix = "lease", _PODS.format(namespace=namespace)
    try:
        answer = access.get(LEASES, namespace, LEASE)
    except NoPermission as error:
        return skipped(name, str(error))
    if not answer.is_ok:
        return problem(
            name, "no controller has ever led here", _INSTALL.format(namespace=namespace)
        )
    holder = text(answer.body, "spec", "holderIdentity")
    renewed = moment(answer.body, "spec", "renewTime")
    length = number(answer.body, "spec", "leaseDurationSeconds") or 30
    if not holder or renewed is None:
        return problem(name, "no controller leads: the Lease is free", fix)
    age = max(0.0, now - renewed)
    if age > length + _MAX_SKEW_SECONDS:
        return problem(name, f"{holder} has not renewed it for {age:.0f} s: it is dead", fix)
    return ok(name, f"{holder} leads, renewed {age:.0f} s ago")


def check_network(
    access: Access, namespace: str, jobs: Sequence[Mapping[str, Any]] | None
) -> DoctorLine:
    """Check, by the controller's report, whether it reaches the sidecars on port 9401."""
    name = "network"
    if jobs is None:
        return skipped(name, "only a controller can tell whether it reaches port 9401")
    running = sum(number(each, "pods", "running") or 0 for each in jobs)
    answering = sum(number(each, "pods", "answering") or 0 for each in jobs)
    if not running:
        return skipped(name, "no watched pod with a sidecar runs")
    if answering == running:
        return ok(name, f"the controller reaches port 9401 of all {running} pods")
    silent = [each for job in jobs for each in items(mapping(job, "pods"), "silent")]
    first = f"{text(silent[0], 'pod')}: {text(silent[0], 'problem')}" if silent else ""
    policies = _policies(access, namespace)
    fix = f"{_OPEN}; now: {names(policies)}" if policies else "see mwatch status and the pod's log"
    what = f"the controller reaches {answering} of {running} pods on port 9401 ({first})"
    return problem(name, what, fix)


def _policies(access: Access, namespace: str) -> list[str]:
    try:
        listing = access.list(_POLICIES, namespace)
    except KubeError:
        return []
    return [text(each, "metadata", "name") for each in listing.objects]


_MONITORS = (
    ApiResource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
    ApiResource("azmonitoring.coreos.com", "v1", "podmonitors", "PodMonitor"),
)
_SELECTORS = ("operated-prometheus=true", "app.kubernetes.io/name=prometheus", "app=prometheus")
_WATCH = "mwatch.dev/watch"
_PROMETHEUS_PORT = 9090
_PROMETHEUS_SECONDS = 5.0
_MAX_BYTES = 4 << 20
_UPGRADE = (
    "helm upgrade mwatch charts/mwatch -n {namespace} --reuse-values --set monitoring.kind=operator"
)


def check_pod_monitor(access: Access, namespace: str) -> DoctorLine:
    name = "PodMonitor"
    try:
        listings = [access.list(each, namespace) for each in _MONITORS]
    except KubeError as error:
        return skipped(name, str(error))
    if not any(each.is_known for each in listings):
        return skipped(
            name, "the cluster has no prometheus-operator; scrape by annotations instead"
        )
    found = [
        text(body, "metadata", "name")
        for listing in listings
        for body in listing.objects
        if _WATCH in text_map(body, "spec", "selector", "matchLabels")
    ]
    if found:
        return ok(name, f"{names(found)} selects the label {_WATCH}")
    what = f"no PodMonitor in namespace {namespace} selects the label {_WATCH}"
    return problem(name, what, _UPGRADE.format(namespace=namespace))


def check_scrapes(access: Access, namespace: str, address: str, pods: int | None) -> DoctorLine:
    """`address`: of Prometheus; empty: search for it. `pods`: number with a sidecar, if known."""
    name, fix = (
        "Prometheus",
        "compare the labels of the PodMonitor with podMonitorSelector of Prometheus",
    )
    where = address
    try:
        if address:
            count = scraped(lambda path: _fetch(address.rstrip("/") + path), namespace)
        else:
            service = _service(access)
            if service is None:
                return skipped(name, "no Service of Prometheus was found; give --prometheus URL")
            where = f"{service.namespace}/{service.name}"
            count = scraped(
                lambda path: access.page(service.path + path, None, _PROMETHEUS_SECONDS), namespace
            )
    except (KubeError, ValueError) as error:
        text = f"{where or 'Services'}: {error}"
        return (
            problem(name, text, "give its address: --prometheus URL")
            if address
            else skipped(name, text)
        )
    if pods == 0:
        return skipped(name, "no pod with a sidecar runs: there is nothing to scrape")
    if count == 0 or (pods is not None and count < pods):
        of = "" if pods is None else f" of {pods}"
        return problem(name, f"{where} scrapes {count}{of} sidecars of namespace {namespace}", fix)
    return ok(name, f"{where} scrapes {count} sidecars of namespace {namespace}")


def scraped(fetch: Callable[[str], bytes], namespace: str) -> int:
    """Count the pods that Prometheus has recently scraped. ValueError for an invalid response."""
    wanted = namespace.replace("\\", "").replace('"', "")
    own = f'mwatch_start_timestamp_seconds{{namespace="{wanted}",run_namespace=""}}'
    query = f"count(count by (pod) ({own}))"
    data = fetch("/api/v1/query?" + urlencode({"query": query}))
    body = json_codec.decode(data)
    if text(body, "status") != "success":
        raise ValueError(text(body, "error") or "the answer is not one of Prometheus")
    found = items(body, "data", "result")
    value = part(found[0], "value") if found else None
    return int(float(value[1])) if isinstance(value, list) and len(value) == 2 else 0


def _fetch(url: str) -> bytes:
    """Return the body; ValueError if there is no response or its status is not 200."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("give an address such as http://prometheus:9090")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        with closing(kind(parts.hostname, parts.port, timeout=_PROMETHEUS_SECONDS)) as connection:
            connection.request("GET", f"{parts.path}?{parts.query}")
            response = connection.getresponse()
            data = response.read(_MAX_BYTES)
    except (OSError, HTTPException) as error:
        raise ValueError(f"no answer: {reason(error)}") from None
    if response.status != 200:
        raise ValueError(f"status {response.status}")
    return data


def _service(access: Access) -> Port | None:
    """Return the first Service in any namespace with a usual label of Prometheus."""
    for labels in _SELECTORS:
        for body in access.list(SERVICES, None, labels=labels).objects:
            return Port(
                SERVICES, text(body, "metadata", "namespace"), text(body, "metadata", "name"),
                _web_port(body),
            )  # fmt: skip
    return None


def _web_port(body: Mapping[str, Any]) -> int:
    ports = [number(each, "port") for each in items(body, "spec", "ports")]
    return (
        _PROMETHEUS_PORT
        if _PROMETHEUS_PORT in ports
        else next(filter(None, ports), _PROMETHEUS_PORT)
    )


class DoctorRequest(NamedTuple):
    namespace: str
    job: str | None = None
    pulls: bool = False
    prometheus: str = ""
    """Address of Prometheus; empty: search for a Service."""


def examine(access: Access, request: DoctorRequest) -> DoctorReport:
    """Run all checks; InputError if there is no such job."""
    try:
        version = access.server_version()
    except KubeError as error:
        return DoctorReport((unreachable(error),), is_reachable=False)
    user, space = whoami(access), request.namespace
    kinds = check_kinds(access)
    clock = check_clock(access)
    known = f"Kubernetes {version}" if version else "its version may not be read"
    lines = [ok(UNREACHABLE, f"{access.host}, {known}, as {user}"), kinds.line, clock.line]
    lines += _guarded("rights", lambda: rights.check_rights(access, space, kinds.groups, user))
    state = check_controller(access, space, clock.ahead_seconds)
    lines += state.lines
    if state.jobs is not None:
        lines += _guarded(
            "controller's rights",
            lambda: [rights.check_controller_rights(access, space, kinds.groups)],
        )
    lines.append(check_network(access, space, state.jobs))
    pods = None if request.job is None else _pods(access, request)
    if pods is not None:
        lines += check_job(access, pods)
    lines += _guarded("PodMonitor", lambda: [check_pod_monitor(access, space)])
    watched = None if pods is None else len(pods.reports)
    lines += _guarded(
        "Prometheus",
        lambda: [check_scrapes(access, space, request.prometheus, watched)],
    )
    lines.append(_pull(access, request, pods))
    return DoctorReport(tuple(lines))


def _guarded(name: str, check: Callable[[], list[DoctorLine]]) -> list[DoctorLine]:
    try:
        return check()
    except KubeError as error:
        return [skipped(name, str(error))]


def _pods(access: Access, request: DoctorRequest) -> JobPods:
    kind, name = parse_job_name(request.job or "")
    found = find_whole(access, request.namespace, name, kind)
    if found is None:
        raise no_such_job(access, request.namespace, name)
    return read_pods(access, found.job)


def _pull(access: Access, request: DoctorRequest, pods: JobPods | None) -> DoctorLine:
    if not request.pulls:
        return skipped("image pull", "creates a pod for some seconds: add --pull")
    first: Any = pods.running[0][0] if pods is not None and pods.running else None
    return check_pull(access, request.namespace, first)
