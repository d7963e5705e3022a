# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch checkpoints`: the checkpoints of a folder or a live job, and which can be resumed from.

The folder is read by `mwatch_trainer`, as in the wrapper; this module adds ages, notes and the
standing of each checkpoint. It cannot determine whether a save is still running, only that a file
changed recently. For a live job, a sidecar reports the contents of the save folder. It does not
send the rollbacks, so `mwatch checkpoints DIR` on a machine that mounts the folder shows more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import structs

from mwatch.errors import InputError
from mwatch.model.observation import StoredCheckpoint, StoredCheckpoints
from mwatch.model.timeline import CheckpointStanding
from mwatch.runtime.fanout import TimedOut, gather
from mwatch.sources import checkpoint_dir
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import (
    NON_PERSISTENT,
    TRACKER,
    FolderListing,
    ListedCheckpoint,
    has_checkpoints,
    list_checkpoints,
    looks_like_checkpoint,
)

if TYPE_CHECKING:
    from mwatch.diagnose.pod_reports import PodReport
    from mwatch.kube.access import Access
    from mwatch.model.kube.job import KubeJob

RUNNING_SECONDS = 900.0
"""A file that changed within this time may belong to a running save; slow ones take minutes."""
_MAX_FOLDERS = 50  # subfolders to search for a hint
_MAX_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    folder: str
    observed_at: float
    listing: FolderListing
    notes: tuple[str, ...]
    timeline: checkpoint_dir.SavedTimeline

    @property
    def newest_complete(self) -> ListedCheckpoint | None:
        return next((each for each in self.listing.checkpoints if is_complete(each)), None)

    @property
    def resume_from(self) -> ListedCheckpoint | None:
        """The newest good checkpoint; None if there is none or the timeline is broken."""
        every, good = self.listing.checkpoints, CheckpointStanding.GOOD
        return next((each for each in every if self.standing(each) is good), None)

    @property
    def exit_code(self) -> int:
        if not self.listing.checkpoints:
            return 3
        is_unknown = self.timeline.is_broken and self.newest_complete is not None
        return 0 if self.resume_from is not None or is_unknown else 1

    def standing(self, checkpoint: ListedCheckpoint) -> CheckpointStanding | None:
        """None if incomplete. Without a timeline there was no rollback, so complete means good."""
        if checkpoint.state is CheckpointState.INCOMPLETE:
            return None
        if self.timeline.is_broken:
            return CheckpointStanding.UNKNOWN
        found = CheckpointStanding.GOOD
        if self.timeline.timeline is not None:
            iteration = checkpoint.iteration or 0
            found = self.timeline.timeline.standing(iteration, checkpoint.newest_mtime)
        is_sure = is_complete(checkpoint) or found is not CheckpointStanding.GOOD
        return found if is_sure else CheckpointStanding.UNKNOWN

    def age_seconds(self, checkpoint: ListedCheckpoint) -> float | None:
        newest = checkpoint.newest_mtime
        return None if newest is None else self.observed_at - newest

    def to_json(self) -> dict[str, Any]:
        listing = self.listing
        return {
            "folder": self.folder,
            "observed_at": self.observed_at,
            "checkpoints": [
                {
                    **each._asdict(),
                    "age_seconds": self.age_seconds(each),
                    "standing": self.standing(each),
                }
                for each in listing.checkpoints
            ],
            "resume_from": self.resume_from.name if self.resume_from else None,
            "has_timeline": self.timeline.timeline is not None,
            "pointers": [each._asdict() for each in listing.pointers],
            "leftovers": [each._asdict() for each in listing.leftovers],
            "left_out": listing.left_out,
            "is_cut": listing.is_cut,
            "notes": list(self.notes),
        }


def is_complete(checkpoint: ListedCheckpoint) -> bool:
    return checkpoint.state is CheckpointState.COMPLETE


def inspect_folder(folder: str, clock: Callable[[], float]) -> CheckpointReport:
    """Raise InputError if `folder` is not a folder or cannot be listed."""
    try:
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise InputError(f"{folder} is not a folder; give the folder that the trainer saves to")
        listing = list_checkpoints(folder)
        hint = None if listing.checkpoints else _hint(folder)
        history = checkpoint_dir.find(folder)
    except FileNotFoundError:
        raise InputError(f"no such folder: {folder}; check the path and the mount") from None
    except PermissionError:
        raise InputError(f"cannot read {folder}: no permission; check its mode") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {folder}: {error}; check the path") from error
    now = clock()
    notes = [each for each in (hint, history.problem) if each is not None]
    notes += [*_timeline_notes(history), *_notes(listing, now)]
    return CheckpointReport(folder, now, listing, tuple(notes), history)


def _timeline_notes(history: checkpoint_dir.SavedTimeline) -> Iterator[str]:
    known = history.timeline
    if known is not None and known.quarantine is not None:
        bad = known.quarantine
        why = f" ({bad.reason})" if bad.reason else ""
        yield f"checkpoints from iteration {bad.first_bad} on are suspect{why}: no rollback yet"


def _notes(listing: FolderListing, now: float) -> Iterator[str]:
    yield from _pointer_notes(listing)
    for each in listing.checkpoints[:1]:
        newest = each.newest_mtime
        if not is_complete(each) and newest is not None and now - newest < RUNNING_SECONDS:
            yield f"{each.name} changed lately: its save may still be running"
    for leftover in listing.leftovers:
        if leftover.kind == NON_PERSISTENT:
            yield f"{leftover.name} holds {leftover.files} files of non-persistent checkpoints"
    stray = [leftover.name for leftover in listing.leftovers if leftover.kind != NON_PERSISTENT]
    if stray:
        more = f" and {len(stray) - 1} more were" if len(stray) > 1 else " was"
        yield f"{stray[0]}{more} left behind by a save that was stopped"
    if listing.left_out:
        yield f"{listing.left_out} older checkpoints were not read"
    if listing.is_cut:
        yield "the folder has too many entries: some were not read"


def _pointer_notes(listing: FolderListing) -> Iterator[str]:
    states = {each.name: each.state for each in listing.checkpoints}
    is_megatron = any(name == "release" or name.startswith("iter_") for name in states)
    if is_megatron and all(pointer.file != TRACKER for pointer in listing.pointers):
        yield f"there is no {TRACKER}: Megatron finds no checkpoint here and starts from random"
    for pointer in listing.pointers:
        if pointer.problem is not None:
            yield f"{pointer.file} {pointer.problem}"
        elif pointer.checkpoint is None:
            yield f"{pointer.file} names {pointer.value}, which is not here"
        elif (state := states.get(pointer.checkpoint)) not in (None, CheckpointState.COMPLETE):
            yield f"{pointer.file} names {pointer.checkpoint}, which is {state.value}"


def _hint(folder: str) -> str:
    """Explain why nothing was found, and which folder may be meant."""
    if looks_like_checkpoint(folder):
        above = os.path.dirname(os.path.abspath(folder))
        return f"this folder is itself a checkpoint: give the folder above it, {above}"
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, _MAX_ENTRIES))
    if not names:
        return "the folder is empty"
    inside = [name for name in names[:_MAX_FOLDERS] if _holds_checkpoints(folder, name)]
    if inside:
        more = f" and {len(inside) - 1} more folders" if len(inside) > 1 else ""
        return f"there are checkpoints one folder deeper: in {inside[0]}{more}"
    known = "iter_0000020/, release/, ep0-ba100-rank0.pt, ep0-ba100/"
    return f"no name here is that of a Megatron-LM or Composer checkpoint, such as {known}"


def _holds_checkpoints(folder: str, name: str) -> bool:
    path = os.path.join(folder, name)
    if os.path.islink(path):
        return False
    try:
        return has_checkpoints(path)
    except OSError:
        return False


_SECONDS = 4.0
_COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class JobCheckpoints:
    job: str
    observed_at: float
    stored: StoredCheckpoints | None
    """None: no sidecar reports a save folder."""
    pod: str = ""
    """The pod whose sidecar reports the most checkpoints."""
    tracker: str | None = None
    why: str = ""
    """Why no data is available."""

    @property
    def checkpoints(self) -> list[StoredCheckpoint]:
        """Newest first."""
        found = self.stored.checkpoints if self.stored is not None else ()
        return sorted(found, key=lambda each: -each.iteration)

    @property
    def newest_complete(self) -> StoredCheckpoint | None:
        return next((each for each in self.checkpoints if each.state == _COMPLETE), None)

    @property
    def exit_code(self) -> int:
        if not self.checkpoints:
            return 3
        return 0 if self.newest_complete is not None else 1

    def age_seconds(self, checkpoint: StoredCheckpoint) -> float | None:
        at = checkpoint.written_at
        return None if at is None else self.observed_at - at

    def to_json(self) -> dict[str, Any]:
        newest = self.newest_complete
        return {
            "job": self.job,
            "folder": None if self.stored is None else self.stored.folder,
            "observed_at": self.observed_at,
            "pod": self.pod or None,
            "tracker": self.tracker,
            "checkpoints": [
                {**structs.asdict(each), "age_seconds": self.age_seconds(each)}
                for each in self.checkpoints
            ],
            "newest_complete": None if newest is None else newest.iteration,
            "why": self.why or None,
        }


def inspect_job(
    job: str, namespace: str | None, kubeconfig: str | None, context: str | None, now: float
) -> JobCheckpoints:
    """Raise InputError if there is no such job, KubeError if the cluster is unreachable."""
    # Imported here so that reading a folder does not need the Kubernetes packages.
    from mwatch.kube.access import open_access
    from mwatch.kube.jobs import find_whole, no_such_job, parse_job_name

    kind, name = parse_job_name(job)
    with closing(open_access(kubeconfig, context)) as access:
        space = namespace or access.namespace
        found = find_whole(access, space, name, kind)
        if found is None:
            raise no_such_job(access, space, name)
        return checkpoints_of(access, found.job, now)


def checkpoints_of(
    access: Access, job: KubeJob, now: float, most_pods: int | None = None
) -> JobCheckpoints:
    """Return what the sidecars of the job, or of its first `most_pods`, report."""
    from mwatch.diagnose.cluster_facts import job_pods
    from mwatch.diagnose.pod_reports import ask_sidecar

    running = [each for each in job_pods(access, job) if each[1].phase == "Running"]
    asks = {pod.name: partial(ask_sidecar, access, pod, body) for body, pod in running[:most_pods]}
    answers = gather(asks, seconds=_SECONDS)
    reports = [each for each in answers.values() if not isinstance(each, TimedOut)]
    return _best(job.name, now, reports, len(asks))


def _best(job: str, now: float, reports: list[PodReport], pods: int) -> JobCheckpoints:
    """Choose the longest listing: pods may see a stale one on a network file system."""
    seen = [
        (each.snapshot.stored, each)
        for each in reports
        if each.snapshot is not None and each.snapshot.stored is not None
    ]
    found = [(one.what, each) for one, each in seen if isinstance(one.what, StoredCheckpoints)]
    if not found:
        silent = [each.sidecar for each in reports if each.sidecar]
        why = "no pod runs" if not pods else "no sidecar reports a save folder"
        return JobCheckpoints(job, now, None, why=f"{why}: {silent[0]}" if silent else why)
    stored, best = max(found, key=lambda each: len(each[0].checkpoints))
    snapshot = best.snapshot
    assert snapshot is not None
    shift = snapshot.shift(best.received_at)
    moved = tuple(
        each
        if each.written_at is None
        else structs.replace(each, written_at=each.written_at + shift)
        for each in stored.checkpoints
    )
    tracker = snapshot.pod.tracker if snapshot.pod is not None else None
    return JobCheckpoints(job, now, stored._replace(checkpoints=moved), best.pod.name, tracker)
