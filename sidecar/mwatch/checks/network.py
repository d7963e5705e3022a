# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Variables and devices of the network between pods, and shared memory inside one.

| instance | GPUs | EFA |
| --- | --- | --- |
| p4d, p4de .24xlarge | 8 | 4 |
| p5, p5e .48xlarge | 8 | 32 |
| p5en .48xlarge | 8 | 16 |
| p6-b200 .48xlarge | 8 | 8 |

Where the ranks of a job meet: a store of somebody else's is one more thing that can fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mwatch.checks.pods import gpus, mount_of, named, requested, training, volume_of
from mwatch.model.checks.check import Check, CheckHit, CheckLevel
from mwatch.model.checks.workload import Replica, Workload

_EFA = "vpc.amazonaws.com/efa"
_EFA_COUNTS = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
}
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_RDMA = "rdma/ib"
_SHM = "/dev/shm"
_PVC = "persistentVolumeClaim"


def _variables(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        path, settings = (*each.container_path, "env"), each.environment
        if settings.get("NCCL_SOCKET_IFNAME") == "eth0" and _is_aws(each):
            yield CheckHit(
                path,
                f"{each.name}: NCCL_SOCKET_IFNAME=eth0, and no such interface on these instances",
                "use ^lo, or leave it out",
            )
        if settings.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
            message = (
                f"{each.name}: NCCL_DEBUG={settings['NCCL_DEBUG']} writes much, from every rank"
            )
            yield CheckHit(path, message, "use WARN")
        for name in ("NCCL_PROTO", "NCCL_ALGO"):
            if name in settings:
                message = f"{each.name}: {name} is set, which keeps NCCL from choosing"
                yield CheckHit(path, message, "leave it out unless you have measured")
        cache = settings.get("TRITON_CACHE_DIR")
        if cache and _PVC in (volume_of(each, cache) or {}):
            yield CheckHit(
                path,
                f"{each.name}: TRITON_CACHE_DIR {cache} is on a shared volume, whose locks hang",
                "use a folder in /tmp",
            )


def _is_aws(replica: Replica) -> bool:
    kind = instance_type(replica) or ""
    efa = requested(replica, _EFA) or replica.environment.get("FI_PROVIDER") == "efa"
    return bool(efa) or kind in _EFA_COUNTS


def instance_type(replica: Replica) -> str | None:
    """That the pods are bound to; HyperPod's have a prefix. None: any."""
    selector = replica.pod.get("nodeSelector")
    found = selector.get(_TYPE_LABEL) if isinstance(selector, Mapping) else None
    return str(found).removeprefix("ml.") if found else next(_by_affinity(replica), None)


def _by_affinity(replica: Replica) -> Iterator[str]:
    wanted = _at(
        replica.pod, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"
    )
    for term in named(_at(wanted, "nodeSelectorTerms")):
        for rule in named(term.get("matchExpressions")):
            values = rule.get("values")
            if rule.get("key") == _TYPE_LABEL and isinstance(values, list) and len(values) == 1:
                yield str(values[0]).removeprefix("ml.")


def _at(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _devices(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        path = (*each.container_path, "resources")
        kind, efa = instance_type(each), requested(each, _EFA)
        wanted = _EFA_COUNTS.get(kind or "")
        if wanted is not None and efa != wanted and (gpus(each) or 0) >= 8:
            yield CheckHit(
                path,
                f"{each.name} asks for {efa or 'no'} EFA devices; {kind} has {wanted}",
                f"give {_EFA}: {wanted}, or NCCL runs over fewer of them",
            )
        cards = requested(each, _RDMA)
        if cards is not None and gpus(each) is not None and cards != gpus(each):
            message = f"{each.name} asks for {gpus(each)} GPUs and {cards} {_RDMA}"
            yield CheckHit(path, message, "make them equal: each GPU has a card of its own")


def _shared_memory(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        if not gpus(each) or each.pod.get("hostIPC") is True or mount_of(each, _SHM):
            continue
        yield CheckHit(
            (*each.container_path, "volumeMounts"),
            f"{each.name} has no volume at {_SHM}: 64 MiB is all that NCCL and data loaders get",
            f"mount an emptyDir with medium: Memory at {_SHM}",
        )


NETWORK_CHECKS = (
    Check("network-variables", CheckLevel.WARNING, "NCCL is free to choose, and quiet", _variables),
    Check(
        "network-devices",
        CheckLevel.WARNING,
        "all network cards of the node are asked for",
        _devices,
    ),
    Check("shared-memory", CheckLevel.WARNING, "there is a large /dev/shm", _shared_memory),
)


_FLAGS = ("--rdzv-backend", "--rdzv_backend")
_ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")


def _store(workload: Workload) -> Iterator[CheckHit]:
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


def _seen(path: tuple[str | int, ...], host: str, kind: str) -> CheckHit:
    return CheckHit(
        path,
        f"the ranks meet at the etcd at {host}{kind}: while it is away no pod can join, and all "
        "of them leave",
        "use the rendezvous c10d, which needs no store of its own",
    )


RENDEZVOUS_CHECKS = (
    Check(
        "rendezvous-store", CheckLevel.WARNING, "the ranks meet without a store of others", _store
    ),
)
