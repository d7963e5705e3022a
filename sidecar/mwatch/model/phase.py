# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The phases of a job. Each has its own deadline: a save is not a slow step."""

from __future__ import annotations

from enum import StrEnum


class JobPhase(StrEnum):
    QUEUED = "queued"
    SCHEDULING = "scheduling"
    STARTING = "starting"
    LOADING = "loading"
    FIRST_STEP = "first-step"
    TRAINING = "training"
    SAVING = "saving"
    ASYNC_FINALIZE = "async-finalize"
    EVALUATING = "evaluating"
    STOPPING = "stopping"
    ENDED = "ended"  # the trainer reported its exit, or its processes are gone


class DeadlineSlot(StrEnum):
    """Keys of learnt deadlines: the phases, and the first save of a process.

    The first save of a process took 18 s where the next took 0.7 s: a deadline learnt from later
    saves would kill the first one after every restart.
    """

    STARTING = "starting"
    LOADING = "loading"
    FIRST_STEP = "first-step"
    TRAINING = "training"
    FIRST_SAVE = "first-save"
    SAVING = "saving"
    ASYNC_FINALIZE = "async-finalize"
    EVALUATING = "evaluating"
    STOPPING = "stopping"


_SLOTS = {slot.value: slot for slot in DeadlineSlot}


def slot_of(phase: JobPhase, saves_done: int) -> DeadlineSlot | None:
    """Return the deadline slot of a phase; None: it has no deadline of its own."""
    if phase is JobPhase.SAVING and not saves_done:
        return DeadlineSlot.FIRST_SAVE
    return _SLOTS.get(phase.value)
