# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the cluster around a job tells: CRD, nodes, storage classes, services, its own pods."""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.checks.pods import SAVE, named, training, volume_of
from mwatch.model.check import Level, RunningCheck, Seen, Unseen
from mwatch.model.kube_node import HYPERPOD_HEALTH, KubeNode
from mwatch.model.running import CLAIMS, CRD, NODES, SERVICES, Running
from mwatch.model.workload import Replica

_SIDECAR = "mwatch"
_TENSORBOARD = "--tensorboard-dir"
_OF_A_CRD = ("PyTorchJob", "JobSet", "TrainJob")


def _sidecar_kept(running: Running) -> list[Seen] | Unseen:
    """A CRD that does not know the field drops it, and the sidecar never lets the pod start."""
    pruned = [each.name for each in running.workload.replicas if _is_pruned(each)]
    if pruned:
        said = f"{', '.join(pruned)}: the sidecar is an init container that never ends, and the pod"
        return [
            Seen((), f"{said} waits for it: the CRD has dropped its restartPolicy",
                 "mwatch inject --sidecar container, or a newer training operator")
        ]  # fmt: skip
    if running.workload.kind not in _OF_A_CRD:
        return []
    if running.kept is None:
        return Unseen(running.why(CRD, "the CRD was not read"))
    if running.kept.restart_policy:
        return []
    said = f"the CRD of {running.workload.kind} drops restartPolicy of init containers"
    return [Seen((), said, "use mwatch inject --sidecar container, or auto", Level.INFO)]


def _is_pruned(replica: Replica) -> bool:
    found = [each for each in named(replica.pod.get("initContainers")) if _name(each) == _SIDECAR]
    return any(each.get("restartPolicy") != "Always" for each in found)


def _name(container: object) -> str:
    return str(container.get("name")) if hasattr(container, "get") else ""


def _nodes(running: Running) -> list[Seen] | Unseen:
    nodes = running.facts.nodes
    names = {pod.node for pod in running.facts.pods if pod.node and not pod.is_over}
    if nodes is None:
        return Unseen(running.why(NODES, "the nodes may not be read"))
    if not names:
        return Unseen("no pod is on a node")
    known = {each.name: each for each in nodes}
    found = [
        Seen((), f"node {name} is gone, and pods of the job are on it", "see mwatch restart")
        for name in sorted(names)
        if name not in known
    ]
    for each in (known[name] for name in sorted(names) if name in known):
        found += [Seen((), f"node {each.name} {words}", mend) for words, mend in _ills(each)]
    return found


def _ills(node: KubeNode) -> Iterator[tuple[str, str]]:
    if not node.is_ready:
        said = node.unready_text or "its kubelet has not been heard of"
        yield f"is not ready: {said}", f"kubectl describe node {node.name}"
    if node.is_replaced:
        health = node.labels.get(HYPERPOD_HEALTH, "")
        yield f"is {health} by HyperPod", "wait until it is replaced; its auto-resume restarts"
    for taint in node.taints:
        if taint.effect == "NoExecute" and node.is_ready:
            yield f"drives pods off: taint {taint.key}", f"kubectl describe node {node.name}"


def _reclaim(running: Running) -> list[Seen] | Unseen:
    if running.claims is None:
        return Unseen(running.why(CLAIMS, "claims and storage classes were not read"))
    wanted = _save_claims(running)
    if not wanted:
        return Unseen("which claim holds the checkpoints cannot be told")
    by_name = {each.name: each for each in running.claims}
    known = [by_name[name] for name in wanted if name in by_name]
    if not known or any(not each.reclaim for each in known):
        return Unseen(running.why(CLAIMS, "the storage class of the claim was not read"))
    return [
        Seen(
            (),
            f"claim {each.name} has reclaim policy Delete (storage class {each.storage_class}): "
            "whoever deletes the claim deletes the checkpoints",
            "set persistentVolumeReclaimPolicy of its volume to Retain",
        )
        for each in known
        if each.reclaim == "Delete"
    ]


def _save_claims(running: Running) -> list[str]:
    names = []
    for each in training(running.workload):
        save = running.arguments.get("--save") or each.text(*SAVE, "save_folder")
        volume = volume_of(each, save) if save else None
        claim = (volume or {}).get("persistentVolumeClaim")
        if isinstance(claim, dict) and claim.get("claimName"):
            names.append(str(claim["claimName"]))
    return list(dict.fromkeys(names))


def _tensorboard(running: Running) -> list[Seen] | Unseen:
    replicas = training(running.workload)
    is_set = _TENSORBOARD in running.arguments or any(_TENSORBOARD in e.arguments for e in replicas)
    if not is_set:
        return []
    if running.services is None:
        return Unseen(running.why(SERVICES, "the Services were not read"))
    if any("tensorboard" in each.lower() for each in running.services):
        return []
    said = f"{_TENSORBOARD} is set, and no Service in the namespace shows it"
    return [Seen((), said, "run tensorboard --logdir there, or use mwatch's dashboards")]


def _rendezvous(running: Running) -> list[Seen] | Unseen:
    if not running.facts.pods:
        return Unseen("there are no pods")
    ids = running.rendezvous
    if len(set(ids.values())) < 2:
        return []
    newest = max(ids, key=lambda pod: _created(running, pod))
    return [
        Seen(
            (),
            f"RDZV_ID differs between pods ({newest} has {ids[newest]}, "
            f"{min(pod for pod in ids if ids[pod] != ids[newest])} another): they never meet",
            "restart all of them together: mwatch restart JOB",
        )
    ]


def _created(running: Running, name: str) -> float:
    pod = next((each for each in running.facts.pods if each.name == name), None)
    return (pod.created_at if pod is not None else None) or 0.0


CHECKS = (
    RunningCheck("sidecar-kept", Level.ERROR, "the CRD keeps a native sidecar", _sidecar_kept),
    RunningCheck("nodes", Level.ERROR, "the nodes of the job are well", _nodes),
    RunningCheck("reclaim", Level.WARNING, "checkpoints outlive their claim", _reclaim),
    RunningCheck("tensorboard", Level.INFO, "TensorBoard can be reached", _tensorboard),
    RunningCheck("pod-rendezvous-id", Level.ERROR, "the pods have one RDZV_ID", _rendezvous),
)
