# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is right for each fault (DESIGN 7): verdicts that are true, and what may be done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mwatch.model.cause import Cause as C
from mwatch.model.decision import Action
from mwatch.model.phase import JobPhase
from sim.eyes import Eyes
from sim.shape import Shape
from sim.stage import Incident

_RESTART = frozenset({Action.RESTART})
_STOP = frozenset({Action.STOP})
_NONE: frozenset[Action] = frozenset()


class Truth(NamedTuple):
    cause: C
    accepted: frozenset[C]
    """Verdicts that are true of it, as far as it can be seen."""
    actions: frozenset[Action]
    """What may be done about it; empty: nothing."""
    has_culprit: bool = False
    rolls_back: bool = False
    """A right checkpoint is older than the incident's iteration."""


def _truth(
    cause: C, actions: frozenset[Action], *also: C, culprit: bool = False, rolls_back: bool = False
) -> Truth:
    return Truth(cause, frozenset({cause, *also}), actions, culprit, rolls_back)


KINDS: dict[str, Truth] = {
    "hang": _truth(C.HANG, _RESTART, C.FABRIC, culprit=True),
    "hang_all": _truth(C.HANG, _RESTART, C.FABRIC, C.STORAGE),
    "stall_heals": _truth(C.HEALTHY, _NONE, C.FINISHED, C.HANG),
    "stall_all_heals": _truth(C.HEALTHY, _NONE, C.FINISHED, C.HANG, C.STORAGE, C.FABRIC),
    "unknown_work": _truth(C.HEALTHY, _NONE, C.FINISHED, C.HANG, C.STORAGE, C.FABRIC),
    "much_slower": _truth(C.HEALTHY, _NONE, C.FINISHED, C.HANG, C.SLOW),
    "held": _truth(C.HEALTHY, _NONE, C.FINISHED, C.HANG, C.BLIND, C.LOST_POD),
    "killed": _truth(C.KILLED, _RESTART, culprit=True),
    "lost_pod": _truth(C.LOST_POD, _RESTART, C.KILLED, C.HANG, C.FABRIC, C.CRASH),
    "oom": _truth(C.OOM, _STOP, culprit=True),
    "user_error": _truth(C.USER_ERROR, _STOP, culprit=True),  # in training: see truth_of
    "data": _truth(C.DATA, _STOP, culprit=True),
    "storage": _truth(C.STORAGE, _RESTART, culprit=True),
    "crash": _truth(C.CRASH, _RESTART, culprit=True),
    "hardware": _truth(C.HARDWARE, _RESTART, culprit=True),
    "nccl_timeout": _truth(C.FABRIC, _RESTART, C.HANG, C.CRASH, C.UNKNOWN),
    "bad_checkpoint": _truth(C.CHECKPOINT, _RESTART),
    "nan_guard": _truth(C.NAN, _RESTART, C.RERUN, culprit=True),
    "exit_16": _truth(C.RERUN, _RESTART, C.NAN, culprit=True),
    "exit_17": _truth(C.HARDWARE, _RESTART, C.NAN, culprit=True),
    "nan": _truth(C.NAN, _RESTART, rolls_back=True),
    "collapse": _truth(C.LOSS_SCALE_COLLAPSE, _RESTART, C.NAN, rolls_back=True),
    "spike_stays": _truth(C.LOSS_SPIKE, _RESTART, rolls_back=True),
    "stuck": _truth(C.LOSS_STUCK, _NONE),
    "slow": _truth(C.SLOW, _NONE),
    "straggler": _truth(C.SLOW, _NONE),
    "diverged": _truth(C.RESUME_DIVERGED, _NONE),
    "overdue": _truth(C.CHECKPOINT_OVERDUE, _NONE),
    "random": _truth(C.STARTED_FROM_RANDOM, _STOP),
    "blind": _truth(C.BLIND, _NONE, C.HANG, C.UNKNOWN),
    "sigterm": _truth(C.FINISHED_EARLY, _RESTART, C.KILLED),
    "preempted": _truth(C.PREEMPTED, _NONE),
    "drained": _truth(C.DRAINED, _NONE),
    "deleted": _truth(C.DELETED_BY_USER, _NONE),
}
_WELL = (C.HEALTHY, C.FINISHED)
_ASKED = frozenset({"preempted", "drained", "deleted"})


def truth_of(incident: Incident, shape: Shape, eyes: Eyes) -> Truth:
    """What can be known differs with what can be seen, and with when it happens."""
    kind, truth = incident.fault.kind, KINDS[incident.fault.kind]
    if kind in _ASKED and not eyes.exits:  # nobody sees how a pod ended: it is just gone
        return _truth(C.KILLED, _RESTART, C.FINISHED_EARLY, C.CRASH, C.UNKNOWN, C.HANG)
    if kind == "nan_guard" and shape.release.guard != "rerun":
        return truth._replace(accepted=frozenset({C.NAN}))
    also = frozenset(_also(incident, shape, eyes))
    if kind == "user_error" and incident.phase is JobPhase.TRAINING:
        # an exception after many good steps may be the data or the machine: once more is fair
        return truth._replace(accepted=truth.accepted | {C.CRASH}, actions=_STOP | _RESTART)
    return truth._replace(accepted=truth.accepted | also)


def _also(incident: Incident, shape: Shape, eyes: Eyes) -> Iterator[C]:
    """Verdicts that are true as well."""
    fault, phase = incident.fault, incident.phase
    is_done = incident.iteration >= shape.total
    if is_done and phase in (JobPhase.STOPPING, JobPhase.EVALUATING):
        yield from _WELL  # the training is done and saved
    if shape.max_restarts:
        yield from _WELL  # torchrun recovers it before anybody else can
    if fault.kind == "blind" and (fault.variant == "probe" or not eyes.probe):
        yield from _WELL  # the log goes on; or it stops, as it does in a long save
    if phase is JobPhase.STARTING and fault.part == 0 and not eyes.probe:
        yield C.BLIND  # nothing was ever printed
    is_alone = shape.pod_ranks == 1 and not (eyes.process or eyes.cpu or eyes.gpu)
    if fault.kind == "hang" and is_alone:
        yield C.LOST_POD  # all of the pod is silent
