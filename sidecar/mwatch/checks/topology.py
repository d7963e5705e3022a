# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the rank layout and of how ranks reach each other: parallel sizes, network, rendezvous.

DP = world / (TP x PP x CP). Sizes that do not divide fail the job in its first minute, on every
GPU. Expert parallelism divides DP and does not matter here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mwatch.checks.pods import (
    NPROC,
    at,
    gpus,
    has_arguments,
    mapping,
    mount_of,
    named,
    requested,
    training,
    volume_of,
)
from mwatch.model.checks import Check, CheckHit, CheckLevel, Path, Replica, Workload
from mwatch.model.machines import MACHINES

_UNEVEN = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--encoder-num-layers",
)
"""With one of these flags, pipeline stages may have different numbers of layers."""
_RAMP = "--rampup-batch-size"


class JobParallelism(NamedTuple):
    replica: Replica
    tensor: int
    pipeline: int
    context: int
    world: int | None  # None: pods or GPUs are not plain numbers in the manifest

    @property
    def model(self) -> int:
        return self.tensor * self.pipeline * self.context

    @property
    def text(self) -> str:
        return f"TP {self.tensor} x PP {self.pipeline} x CP {self.context} = {self.model}"

    @property
    def path(self) -> Path:
        return self.replica.container_path


def shape_of(workload: Workload) -> JobParallelism | None:
    """None if the manifest has no Megatron arguments, or a parallel size is unknown."""
    replicas = training(workload)
    first = next((each for each in replicas if has_arguments(each)), None)
    if first is None:
        return None
    flags = ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    sizes = [_size(first, f"--{name}-size") for name in flags]
    if None in sizes:
        return None  # a size that is known only to the shell
    tensor, pipeline, context = (size or 1 for size in sizes)
    return JobParallelism(first, tensor, pipeline, context, _world(workload, replicas))


def _size(replica: Replica, flag: str) -> int | None:
    return replica.number(flag) if flag in replica.arguments else 1


def _world(workload: Workload, replicas: list[Replica]) -> int | None:
    total = 0
    for each in replicas:
        ranks = _ranks(workload, each)
        if ranks is None or each.count is None:
            return None
        total += ranks * each.count
    return total or None


def _ranks(workload: Workload, replica: Replica) -> int | None:
    """Return the ranks of one pod: from the launcher's flag, the operator's field, or the number of
    GPUs."""
    if any(each in replica.arguments for each in NPROC):
        return replica.number(*NPROC) or gpus(replica)
    field = str(workload.spec.get("nprocPerNode", ""))
    return int(field) if field.isascii() and field.isdigit() else gpus(replica)


def _world_size(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    if shape is not None and shape.world and shape.world % shape.model:
        what = f"the world size {shape.world} is not divisible by {shape.text}"
        fix = f"use a multiple of {shape.model} GPUs, or smaller parallel sizes"
        yield CheckHit(shape.path, what, fix)


def _batch(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    if shape is None or not shape.world or shape.world % shape.model:
        return
    whole = shape.replica.number("--global-batch-size")
    micro = shape.replica.number("--micro-batch-size")
    if not whole or not micro or _RAMP in shape.replica.arguments:
        return
    data = shape.world // shape.model
    if whole % (micro * data):
        what = f"the global batch {whole} is not divisible by micro batch {micro} x DP {data}"
        yield CheckHit(shape.path, what, f"use a multiple of {micro * data}")


def _heads(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    heads = None if shape is None else shape.replica.number("--num-attention-heads")
    if shape is not None and heads and heads % shape.tensor:
        what = f"{heads} attention heads are not divisible by TP {shape.tensor}"
        yield CheckHit(shape.path, what, "choose another tensor-parallel size")


def _layers(workload: Workload) -> Iterator[CheckHit]:
    shape = shape_of(workload)
    layers = None if shape is None else shape.replica.number("--num-layers")
    if shape is None or not layers or any(each in shape.replica.arguments for each in _UNEVEN):
        return
    if layers % shape.pipeline:
        what = f"{layers} layers are not divisible by PP {shape.pipeline}"
        yield CheckHit(shape.path, what, "choose another pipeline-parallel size")


PARALLELISM_CHECKS = (
    Check("world-size", CheckLevel.ERROR, "TP x PP x CP divides nodes x GPUs", _world_size),
    Check("batch", CheckLevel.ERROR, "the global batch divides by micro batch x DP", _batch),
    Check("heads", CheckLevel.ERROR, "attention heads divide by TP", _heads),
    Check("layers", CheckLevel.ERROR, "layers divide by PP", _layers),
)


_EFA = "vpc.amazonaws.com/efa"
_EFA_COUNTS = {name: machine.efa for name, machine in MACHINES.items() if machine.efa}
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_RDMA = "rdma/ib"
_SHM = "/dev/shm"
_PVC = "persistentVolumeClaim"
_FLAGS = ("--rdzv-backend", "--rdzv_backend")
_ENDPOINTS = ("--rdzv-endpoint", "--rdzv_endpoint")


def _variables(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        path, settings = (*each.container_path, "env"), each.environment
        if settings.get("NCCL_SOCKET_IFNAME") == "eth0" and _is_aws(each):
            what = f"{each.name}: NCCL_SOCKET_IFNAME=eth0, and no such interface on these instances"
            yield CheckHit(path, what, "use ^lo, or leave it out")
        if settings.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
            value = settings["NCCL_DEBUG"]
            message = f"{each.name}: NCCL_DEBUG={value} prints a lot on every rank"
            yield CheckHit(path, message, "use WARN")
        for name in ("NCCL_PROTO", "NCCL_ALGO"):
            if name in settings:
                message = f"{each.name}: {name} is set, which keeps NCCL from choosing"
                yield CheckHit(path, message, "leave it out unless you have measured")
        cache = settings.get("TRITON_CACHE_DIR")
        if cache and _PVC in (volume_of(each, cache) or {}):
            what = f"{each.name}: TRITON_CACHE_DIR {cache} is on a shared volume, whose locks hang"
            yield CheckHit(path, what, "use a folder in /tmp")


def _is_aws(replica: Replica) -> bool:
    kind = instance_type(replica) or ""
    efa = requested(replica, _EFA) or replica.environment.get("FI_PROVIDER") == "efa"
    return bool(efa) or kind in _EFA_COUNTS


def instance_type(replica: Replica) -> str | None:
    """Return the only instance type the pods may use, without the `ml.` of HyperPod; None: any."""
    found = at(replica.pod, "nodeSelector", _TYPE_LABEL)
    return str(found).removeprefix("ml.") if found else next(_by_affinity(replica), None)


def _by_affinity(replica: Replica) -> Iterator[str]:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = at(replica.pod, "affinity", "nodeAffinity", required, "nodeSelectorTerms")
    for term in named(terms):
        for rule in named(term.get("matchExpressions")):
            values = rule.get("values")
            if rule.get("key") == _TYPE_LABEL and isinstance(values, list) and len(values) == 1:
                yield str(values[0]).removeprefix("ml.")


def _devices(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        path = (*each.container_path, "resources")
        kind, efa = instance_type(each), requested(each, _EFA)
        wanted = _EFA_COUNTS.get(kind or "")
        if wanted is not None and efa != wanted and (gpus(each) or 0) >= 8:
            what = f"{each.name} asks for {efa or 'no'} EFA devices; {kind} has {wanted}"
            yield CheckHit(path, what, f"give {_EFA}: {wanted}, or NCCL runs over fewer of them")
        cards = requested(each, _RDMA)
        if cards is not None and gpus(each) is not None and cards != gpus(each):
            message = f"{each.name} asks for {gpus(each)} GPUs and {cards} {_RDMA}"
            yield CheckHit(path, message, "make them equal: each GPU has a card of its own")


def _shared_memory(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        if not gpus(each) or each.pod.get("hostIPC") is True or mount_of(each, _SHM):
            continue
        what = f"{each.name} has no volume at {_SHM}: 64 MiB is all that NCCL and data loaders get"
        fix = f"mount an emptyDir with medium: Memory at {_SHM}"
        yield CheckHit((*each.container_path, "volumeMounts"), what, fix)


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


def _store(workload: Workload) -> Iterator[CheckHit]:
    policy = mapping(workload.spec.get("elasticPolicy"))
    if _is_etcd(policy.get("rdzvBackend")):
        host = str(policy.get("rdzvHost") or "etcd")
        yield _etcd_hit(("spec", "elasticPolicy"), host, workload)
        return
    for each in training(workload):
        backend = each.text(*_FLAGS) or each.environment.get("PET_RDZV_BACKEND")
        if _is_etcd(backend):
            endpoint = each.text(*_ENDPOINTS) or each.environment.get("PET_RDZV_ENDPOINT") or "etcd"
            host = endpoint.rsplit(":", 1)[0]
            yield _etcd_hit(each.container_path, host, workload)
            return


def _is_etcd(backend: object) -> bool:
    return str(backend or "").startswith("etcd")


def _etcd_hit(path: Path, host: str, workload: Workload) -> CheckHit:
    named_so = (each for each in workload.others if each.name == host.partition(".")[0])
    kinds = (each.kind for each in named_so if each.kind in ("Deployment", "StatefulSet", "Pod"))
    kind = next((f" (a {each} of this file)" for each in kinds), "")
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
