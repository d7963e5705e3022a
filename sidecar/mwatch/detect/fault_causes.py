# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From an entry of the fault catalogue to the cause of an ended attempt.

An entry's runbook names the family; the exceptions stand beside it. What to do about a cause is
not decided here, but the choice matters: `user_error`, `data` and `oom` stop a job, the others
start it again.
"""

from __future__ import annotations

from mwatch.model.fault import Blame, CatalogueEntry, Role
from mwatch.model.finding import Cause

FAMILIES: dict[str, Cause] = {
    "checkpoint": Cause.CHECKPOINT,
    "collective-timeout": Cause.HANG,
    "data": Cause.DATA,
    "fabric": Cause.FABRIC,
    "gpu-hardware": Cause.HARDWARE,
    "host-memory": Cause.OOM,
    "kubernetes": Cause.LOST_POD,
    "numerics": Cause.NAN,
    "nvlink": Cause.HARDWARE,
    "out-of-memory": Cause.OOM,
    "process-crash": Cause.CRASH,
    "rendezvous": Cause.LOST_POD,
    "software-stack": Cause.USER_ERROR,
    "storage": Cause.STORAGE,
    "user-code": Cause.USER_ERROR,
}
"""By runbook."""

EXCEPTIONS: dict[Cause, tuple[str, ...]] = {
    Cause.HARDWARE: (
        "rerun-transient-error", "rerun-persistent-error", "rerun-not-reproducible",
        "rerun-failed-exit", "weights-differ-across-dp", "process-segfault-nccl", "disk-io-error",
        "ft-gpu-memory-held",
    ),
    Cause.RERUN: (
        "rerun-checkpoint-exit", "rerun-reproducible", "rerun-second-run", "rerun-same-gpu",
    ),
    Cause.HANG: ("store-wait-timeout",),
    Cause.LOSS_SCALE_COLLAPSE: ("loss-scale-at-minimum",),
    Cause.LOSS_SPIKE: ("grad-norm-too-large", "loss-spike-composer"),
    Cause.STARTED_FROM_RANDOM: ("checkpoint-none-found", "checkpoint-tracker-missing"),
    Cause.STORAGE: (
        "checkpoint-write-failed", "checkpoint-worker-failed", "checkpoint-rank-failed",
        "checkpoint-save-overlap", "checkpoint-delete-failed", "data-hub-throttled",
    ),
    Cause.USER_ERROR: (
        # the same for every checkpoint of the run: an older one does not help
        "checkpoint-weights-only", "checkpoint-no-rng-state", "checkpoint-no-optimizer",
        "checkpoint-version-invalid", "checkpoint-required-missing", "checkpoint-shape-differs",
        "checkpoint-keys-differ", "checkpoint-arguments-differ", "checkpoint-format-flag",
        # limits of the pod or the job's own settings
        "ib-memory-lock", "nccl-no-interface", "nccl-topology-missing", "process-too-many-files",
        "process-no-threads", "storage-permission", "object-store-denied", "k8s-container-start",
        "k8s-admission-denied",
    ),
    Cause.CRASH: (
        # may be a kernel, may be the GPU: worth another try
        "cuda-illegal-address", "cuda-misaligned-address", "cuda-launch-failure",
        "cuda-illegal-instruction", "cublas-execution-failed", "cudnn-failed", "te-cublas-error",
        "te-cudnn-error", "te-cuda-error", "wandb-failed", "data-streaming-stale",
        "store-port-in-use", "nccl-bootstrap-mismatch",
        # another process died first
        "dataloader-exited", "gloo-peer-closed", "remote-error", "nccl-remote-error",
        "nccl-peer-closed", "nccl-connect-refused", "nccl-unhandled-cuda", "nccl-cuda-failure",
        "k8s-crash-loop", "k8s-backoff-limit",
    ),
    Cause.FABRIC: ("dns-failure", "etcd-unreachable"),
    Cause.SLOW: ("nccl-uses-tcp", "nccl-no-ib-device", "k8s-readiness-failed"),
    Cause.KILLED: ("process-killed", "k8s-liveness-failed", "elastic-death-signal"),
    Cause.OOM: ("k8s-oom-killed", "slurm-out-of-memory"),
    Cause.DELETED_BY_USER: ("keyboard-interrupt",),
    Cause.IMAGE: ("k8s-image-pull",),
    Cause.UNSCHEDULABLE: (
        "k8s-unschedulable", "k8s-no-gpu-free", "k8s-no-rdma-free", "k8s-quota-exceeded",
    ),
    Cause.VOLUME: ("k8s-mount-failed", "k8s-claim-missing"),
    Cause.PREEMPTED: ("k8s-preempted", "slurm-preempted"),
    Cause.DRAINED: ("k8s-node-shutdown",),
    Cause.FINISHED_EARLY: ("k8s-deadline", "slurm-time-limit"),
}  # fmt: skip
"""By id, where the family is wrong."""

_BY_ID = {id: cause for cause, ids in EXCEPTIONS.items() for id in ids}


def cause_of(entry: CatalogueEntry) -> Cause:
    if entry.role is Role.BENIGN:
        return Cause.UNKNOWN
    if entry.id in _BY_ID:
        return _BY_ID[entry.id]
    if entry.xid is not None:  # 13 and 31 are the application's fault, until they come back
        return Cause.CRASH if entry.blame in (Blame.USER, Blame.JOB) else Cause.HARDWARE
    return FAMILIES.get(entry.runbook, Cause.CRASH)
