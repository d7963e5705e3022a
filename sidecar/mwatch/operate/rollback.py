# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch rollback`: make the trainer resume from a good checkpoint, through its own tracker file.

For a run that mwatch only observes: in mode act the wrappers do the same at each start. The old
value of the tracker is kept, and newer checkpoints are marked as abandoned in the timeline; nothing
is deleted. The run must be stopped: its next save would overwrite the tracker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mwatch.errors import InputError
from mwatch_trainer import contract
from mwatch_trainer.attempt import fencing
from mwatch_trainer.checkpoint import save_dir, timeline
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.save_dir import Candidate, SaveDirView

RUNNING_SECONDS = 900.0
"""A checkpoint written this recently may come from a run that still trains."""


@dataclass(frozen=True, slots=True)
class RollbackReport:
    folder: str
    iteration: int
    standing: str
    abandoned: tuple[int, ...]
    changes: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def roll_back(
    folder: str, iteration: int | None, reason: str, now: float, *, is_dry_run: bool = False
) -> RollbackReport:
    """Roll back to the newest good checkpoint, or to that of `iteration`. Raises InputError."""
    if save_dir.is_remote(folder):
        raise InputError(f"{folder} is an object store: mount it, or set load_path yourself")
    try:
        history, attempt = fencing.current(folder)
        view = _view(folder, history, iteration)
        chosen = _choose(folder, view, iteration)
        newer = tuple(each for each in view.candidates if each.iteration > chosen.iteration)
        changes = () if is_dry_run else tuple(_change(folder, chosen, attempt))
        if newer and not is_dry_run:
            _abandon(folder, history, chosen, newer, reason, now)
    except timeline.BrokenTimeline as error:
        raise InputError(f"{timeline.path_of(folder)} {error}: move it away first") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"cannot change {folder}: {why}; check the mount and its mode") from error
    abandoned = tuple(sorted(each.iteration for each in newer))
    notes = tuple(_notes(chosen, view, now))
    return RollbackReport(folder, chosen.iteration, chosen.standing, abandoned, changes, notes)


def _view(folder: str, history: timeline.TimelineFile, iteration: int | None) -> SaveDirView:
    if iteration is None:
        return save_dir.look(folder, history)
    return save_dir.look_for(folder, history, iteration)


def _choose(folder: str, view: SaveDirView, iteration: int | None) -> Candidate:
    chosen = save_dir.newest(view) if iteration is None else save_dir.find(view, iteration)
    if chosen is None:
        what = "no good checkpoint" if iteration is None else f"no checkpoint {iteration}"
        raise InputError(f"{what} in {folder}: see 'mwatch checkpoints {folder}'")
    if chosen.state is CheckpointState.INCOMPLETE:
        raise InputError(f"{chosen.name} is incomplete: see 'mwatch checkpoints {folder}'")
    if not chosen.name.startswith("iter_"):
        raise InputError(f"{chosen.name} is of Composer: set load_path to it instead")
    return chosen


def _change(folder: str, chosen: Candidate, attempt: int) -> Iterator[str]:
    for done in (
        save_dir.point_at(folder, chosen.iteration, attempt),
        save_dir.set_non_persistent_aside(folder, attempt),
    ):
        if done is not None:
            yield done


def _abandon(
    folder: str,
    history: timeline.TimelineFile,
    chosen: Candidate,
    newer: tuple[Candidate, ...],
    reason: str,
    now: float,
) -> None:
    """Mark the newer checkpoints as abandoned in the timeline: training does not continue them."""
    marked = tuple((each.iteration, each.written_at or now) for each in newer)
    rollback = timeline.TimelineRollback(now, chosen.iteration, None, reason, marked)
    after = timeline.with_rollbacks(history, [rollback])
    text = timeline.to_text(after).encode()
    contract.replace_file(timeline.path_of(folder), text, is_synced=True)


def _notes(chosen: Candidate, view: SaveDirView, now: float) -> Iterator[str]:
    if chosen.standing != timeline.GOOD:
        yield f"{chosen.name} is {chosen.standing}: its numbers may be bad"
    if chosen.state is CheckpointState.UNVERIFIED:
        yield f"{chosen.name} could not be checked"
    times = [each.written_at for each in view.candidates if each.written_at is not None]
    if times and now - max(times) < RUNNING_SECONDS:
        yield "the newest checkpoint is fresh: if the run still trains, stop it and do this again"
