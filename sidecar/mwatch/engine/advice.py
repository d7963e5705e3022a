# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a person should do next, and which page to read: by the fault's own entry, else by cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mwatch import detect
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.finding import Cause, Finding


class Advice(NamedTuple):
    step: str
    runbook: str | None
    """A page of `runbooks/`, without `.md`."""


_BY_CAUSE: dict[Cause, Advice] = {
    Cause.HEALTHY: Advice("nothing to do", None),
    Cause.FINISHED: Advice("nothing to do: training is done", None),
    Cause.HANG: Advice(
        "take stacks and the flight recorder of every rank before you restart",
        "collective-timeout",
    ),
    Cause.FABRIC: Advice("check links and counters of the nodes that are named", "fabric"),
    Cause.KILLED: Advice(
        "find out who sent the signal: the kernel (out of memory), the scheduler, or a person",
        "process-crash",
    ),
    Cause.LOST_POD: Advice("look at the pod's node: is it there, and ready?", "kubernetes"),
    Cause.STORAGE: Advice("check that the volume is mounted, writable and not full", "storage"),
    Cause.CRASH: Advice("read the first error of the rank that is named", "process-crash"),
    Cause.FINISHED_EARLY: Advice(
        "start it again: it ended by a signal or a time limit, before its last iteration",
        "process-crash",
    ),
    Cause.HARDWARE: Advice("keep the job off the node, and have the GPU checked", "gpu-hardware"),
    Cause.RERUN: Advice("resume as Megatron asks, on another GPU if there is one", "numerics"),
    Cause.NAN: Advice(
        "restart from the checkpoint before the first bad iteration; if it comes back at the "
        "same samples, skip them",
        "numerics",
    ),
    Cause.LOSS_SCALE_COLLAPSE: Advice(
        "restart from the checkpoint before the fall; consider bf16 or a lower learning rate",
        "numerics",
    ),
    Cause.LOSS_SPIKE: Advice("restart from before the spike, or skip its samples", "numerics"),
    Cause.CHECKPOINT: Advice(
        "restart from the checkpoint before it; `mwatch checkpoints DIR` lists what is whole",
        "checkpoint",
    ),
    Cause.RESUME_DIVERGED: Advice(
        "compare the resume: was the optimizer loaded, is the data position right?", "checkpoint"
    ),
    Cause.OOM: Advice(
        "lower the micro batch size, or shard more: a restart fails again", "out-of-memory"
    ),
    Cause.USER_ERROR: Advice("fix the arguments or the code: a restart fails again", "user-code"),
    Cause.DATA: Advice("check the data files that are named: a restart fails again", "data"),
    Cause.STARTED_FROM_RANDOM: Advice(
        "stop it if it should have resumed, and check --load and the tracker file", "checkpoint"
    ),
    Cause.SLOW: Advice("look for the slow rank, a slow link, or a slow data loader", None),
    Cause.LOSS_STUCK: Advice("check learning rate, data and what was loaded", "numerics"),
    Cause.CHECKPOINT_OVERDUE: Advice("check that the save folder can be written to", "checkpoint"),
    Cause.BLIND: Advice("name the log that the trainer's last rank prints, and rank 0's", None),
    Cause.UNKNOWN: Advice(
        "see how the processes ended (exit code, kernel log); if it still runs, use --until now",
        "process-crash",
    ),
}
_ELSE = Advice("see what Kubernetes says about the job", "kubernetes")


def advise(
    cause: Cause, finding: Finding | None, catalogue: Mapping[str, CatalogueEntry]
) -> Advice:
    usual = _BY_CAUSE.get(cause, _ELSE)
    if finding is None or finding.cause not in (cause, Cause.RERUN):
        return usual
    entry = catalogue.get(finding.fault) if finding.fault else None
    if entry is not None and entry.role is Role.ROOT:
        return Advice(entry.fix, entry.runbook)
    page = next((each.runbook for each in detect.ALL if each.name == finding.detector), None)
    return usual if usual.runbook or not page else usual._replace(runbook=page)
