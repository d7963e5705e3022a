# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The causes: one word for the state of a run, which is healthy or has a specific problem.

The pages in `runbooks/` explain them, and `decide.policy` has the action for each.
"""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    HEALTHY = "healthy"
    FINISHED = "finished"
    HANG = "hang"
    FABRIC = "fabric"
    KILLED = "killed"
    LOST_POD = "lost_pod"
    STORAGE = "storage"
    CRASH = "crash"
    FINISHED_EARLY = "finished_early"
    HARDWARE = "hardware"
    RERUN = "rerun"  # exit 16: Megatron asks for a resume, to distinguish a bad GPU from bad code
    NAN = "nan"
    LOSS_SCALE_COLLAPSE = "loss_scale_collapse"
    LOSS_SPIKE = "loss_spike"
    CHECKPOINT = "checkpoint"
    RESUME_DIVERGED = "resume_diverged"
    OOM = "oom"
    USER_ERROR = "user_error"
    DATA = "data"
    STARTED_FROM_RANDOM = "started_from_random"
    SLOW = "slow"
    LOSS_STUCK = "loss_stuck"
    CHECKPOINT_OVERDUE = "checkpoint_overdue"
    BLIND = "blind"
    UNKNOWN = "unknown"
    UNSCHEDULABLE = "unschedulable"
    IMAGE = "image"
    VOLUME = "volume"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    SUSPENDED = "suspended"
    DELETED_BY_USER = "deleted_by_user"
