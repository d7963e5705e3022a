# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job meet: a store of somebody else's is one more thing that can fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mwatch.checks.pods import training
from mwatch.model.check import Check, Level, Seen
from mwatch.model.workload import Workload

_FLAGS = ("--rdzv-backend", "--rdzv_backend")
_ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")


def _store(workload: Workload) -> Iterator[Seen]:
    policy = workload.spec.get("elasticPolicy")
    policy = policy if isinstance(policy, Mapping) else {}
    if _is_etcd(policy.get("rdzvBackend")):
        host = str(policy.get("rdzvHost") or "etcd")
        yield _seen(("spec", "elasticPolicy"), host, _kind_of(workload, host))
        return
    for each in training(workload):
        backend = each.text(*_FLAGS) or each.environment.get("PET_RDZV_BACKEND")
        if _is_etcd(backend):
            endpoint = each.text(*_ENDPOINTS) or each.environment.get("PET_RDZV_ENDPOINT") or "etcd"
            host = endpoint.rsplit(":", 1)[0]
            yield _seen(each.container_path, host, _kind_of(workload, host))
            return


def _is_etcd(backend: object) -> bool:
    return str(backend or "").startswith("etcd")


def _kind_of(workload: Workload, host: str) -> str:
    """What this file says about the store itself."""
    name = host.partition(".")[0]
    found = [each for each in workload.others if each.name == name]
    kinds = [each.kind for each in found if each.kind in ("Deployment", "StatefulSet", "Pod")]
    return f" (a {kinds[0]} of this file)" if kinds else ""


def _seen(path: tuple[str | int, ...], host: str, kind: str) -> Seen:
    return Seen(
        path,
        f"the ranks meet at the etcd at {host}{kind}: while it is away no pod can join, and all "
        "of them leave",
        "use the rendezvous c10d, which needs no store of its own",
    )


CHECKS = (
    Check("rendezvous-store", Level.WARNING, "the ranks meet without a store of others", _store),
)
