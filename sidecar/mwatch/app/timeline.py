# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The timeline file of a save folder, as the core knows it.

The shape of the file is `mwatch_trainer.timeline`'s, which the wrapper shares. A file that is
broken is told apart from one that is not there: it may have named the newest checkpoint as
abandoned.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.model.timeline import BegunAttempt, Quarantine, Rollback, Timeline, bounded
from mwatch_trainer import timeline as file


class Found(NamedTuple):
    timeline: Timeline | None
    """None: there is none, or it is broken."""
    problem: str | None = None
    """What a person should know about the file."""
    is_broken: bool = False


def find(folder: str) -> Found:
    name = f"{file.FOLDER}/{file.FILE}"
    try:
        read = file.read(folder)
    except file.Broken as error:
        return Found(None, f"{name} {error}: which checkpoints were abandoned is not known", True)
    if read is None:
        return Found(None)
    newer = f"{name} was written by a newer mwatch: not all of it is understood"
    return Found(to_model(read), newer if read.version > file.VERSION else None)


def to_model(read: file.Timeline) -> Timeline:
    timeline = Timeline(attempt=read.attempt)
    timeline.rollbacks.extend(bounded([Rollback(*each) for each in read.rollbacks]))
    timeline.attempts.extend(BegunAttempt(*each) for each in read.attempts)
    timeline.quarantine = None if read.quarantine is None else Quarantine(*read.quarantine)
    return timeline


def to_text(timeline: Timeline) -> str:
    """What the file is to hold."""
    quarantine = timeline.quarantine
    return file.to_text(
        file.Timeline(
            timeline.attempt,
            tuple(file.Attempt(*each) for each in timeline.attempts),
            tuple(file.Rollback(*each) for each in timeline.rollbacks),
            None if quarantine is None else file.Quarantine(*quarantine),
        )
    )
