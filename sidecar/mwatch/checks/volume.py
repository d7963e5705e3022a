# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the volume of a running job: data files, room for checkpoints, the tracker file."""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.model.checks.check import (
    CheckHit,
    CheckLevel,
    NotChecked,
    RunningCheck,
)
from mwatch.model.checks.running import LOGS, VOLUME, Running
from mwatch.model.observation import StoredCheckpoint
from mwatch.model.snapshot.pod import DataFile, Mount

_TRAIN, _OTHERS = "--train-data-path", ("--valid-data-path", "--test-data-path")
_PER_PARAMETER = 14
"""Bytes in a checkpoint with its optimizer."""
_VOCABULARY = 50257
_OWN = frozenset({"overlay", "tmpfs", "ramfs", "rootfs"})
"""File systems that die with the container or the pod."""
_OVERDUE = 2.0
_MIN_OVERDUE_SECONDS = 600.0
_NO_SIDECAR = "no sidecar reports the volume; use mwatch inject"


def _data_files(running: Running) -> list[CheckHit] | NotChecked:
    """Train, validation and test must not share files, and each needs its index."""
    found = list(_shared(running))
    files = _files(running)
    if files is None and _TRAIN not in running.lists:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    for pod, each in files or ():
        if each.bin_bytes is not None and not each.is_unseen and not each.idx_bytes:
            state = "is not there" if each.idx_bytes is None else "is empty"
            found.append(
                CheckHit((), f"{pod}: {each.prefix}.idx {state}", "run preprocess_data.py again")
            )
        if each.bin_bytes == 0:
            found.append(
                CheckHit((), f"{pod}: {each.prefix}.bin is empty", "prepare the data again")
            )
    return found


def _shared(running: Running) -> Iterator[CheckHit]:
    train = set(_prefixes(running.lists.get(_TRAIN, ())))
    if _TRAIN in running.lists and not train:
        yield CheckHit(
            (), "no data file is left for training", "use fewer files to validate and test"
        )
    for flag in _OTHERS:
        both = train & set(_prefixes(running.lists.get(flag, ())))
        if both:
            yield CheckHit(
                (),
                f"{len(both)} files of {flag} are trained on as well, such as {min(both)}",
                "the folder needs more than twice as many .bin files as CHUNKS",
            )


def _prefixes(words: tuple[str, ...]) -> list[str]:
    """Without the weights."""
    return [each for each in words if not _is_number(each)]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _data_prefix(running: Running) -> list[CheckHit] | NotChecked:
    files = _files(running)
    if files is None:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    seen = [(pod, each) for pod, each in files if not each.is_unseen]
    if not seen:
        return NotChecked("the data folder is not mounted in the sidecars")
    return [
        CheckHit((), f"{pod}: there is no {each.prefix}.bin", "check --data-path and the mount")
        for pod, each in seen
        if each.bin_bytes is None
    ]


def _files(running: Running) -> list[tuple[str, DataFile]] | None:
    found = [(pod, each) for pod, facts in running.pods.items() for each in facts.data]
    return found or None


def _save_mount(running: Running) -> list[CheckHit] | NotChecked:
    mounts = _save_mounts(running)
    if not mounts:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    return [
        CheckHit(
            (),
            f"{pod} saves to {each.path}, which is on {each.kind}: it dies with the pod",
            "mount a volume that all pods share there",
        )
        for pod, each in mounts
        if each.kind in _OWN
    ]


def _save_mounts(running: Running) -> list[tuple[str, Mount]]:
    save = running.arguments.get("--save") or (running.stored.folder if running.stored else None)
    found = [(pod, each) for pod, facts in running.pods.items() for each in facts.mounts]
    return [(pod, each) for pod, each in found if save is None or each.path == save]


def _space(running: Running) -> list[CheckHit] | NotChecked:
    free = [
        (each.free_bytes, pod) for pod, each in _save_mounts(running) if each.free_bytes is not None
    ]
    if not free:
        return NotChecked(running.why(VOLUME, _NO_SIDECAR))
    size = _checkpoint_bytes(running)
    if size is None:
        return NotChecked("the size of a checkpoint is unknown")
    least, pod = min(free)
    if least >= 2 * size:
        return []
    message = f"{pod}: {least / 1e9:.1f} GB are free for checkpoints of {size / 1e9:.1f} GB"
    return [CheckHit((), message, "make room for two of them, or the next save fails")]


def _checkpoint_bytes(running: Running) -> float | None:
    stored = running.stored.checkpoints if running.stored is not None else ()
    sizes = [each.size_bytes for each in stored if each.size_bytes and each.state == "complete"]
    if sizes:
        return float(max(sizes))
    layers, hidden = (
        running.arguments.get(each) or "" for each in ("--num-layers", "--hidden-size")
    )
    if not (layers.isdigit() and hidden.isdigit()):
        return None
    width = int(hidden)
    return float(_PER_PARAMETER * (12 * int(layers) * width * width + _VOCABULARY * width))


def _tracker(running: Running) -> list[CheckHit] | NotChecked:
    stored = running.stored
    if stored is None:
        return NotChecked(running.why(VOLUME, "no sidecar reports the save folder"))
    if not stored.checkpoints:
        return []
    named = next((each.tracker for each in running.pods.values() if each.tracker), None)
    by_number = {str(each.iteration): each for each in stored.checkpoints}
    found: list[CheckHit] = []
    if named is None:
        found.append(
            CheckHit(
                (),
                f"there is no tracker file in {stored.folder}: a restart starts from random",
                "write the newest complete iteration into latest_checkpointed_iteration.txt",
            )
        )
    elif named in by_number and by_number[named].state == "incomplete":
        why = by_number[named].reason or "it is not complete"
        found.append(
            CheckHit((), f"the tracker file names iteration {named}: {why}",
                 "name the newest complete one: mwatch checkpoints JOB lists them")
        )  # fmt: skip
    return found + _overdue(running, max(stored.checkpoints, key=lambda each: each.iteration))


def _overdue(running: Running, newest: StoredCheckpoint) -> list[CheckHit]:
    reported = running.progress
    if not reported.save_interval or not reported.step_seconds or newest.written_at is None:
        return []
    if running.facts.job is None or running.facts.job.finished:
        return []
    usual = reported.save_interval * reported.step_seconds
    age = running.facts.now - newest.written_at
    if age <= max(_OVERDUE * usual, _MIN_OVERDUE_SECONDS):
        return []
    message = f"the newest checkpoint ({newest.iteration}) is {age / 60:.0f} min old; "
    return [
        CheckHit(
            (), f"{message}one is due every {usual / 60:.0f} min", "see whether saves fail or hang"
        )
    ]


def _save_load(running: Running) -> list[CheckHit] | NotChecked:
    """As it really runs: a script may add what the manifest does not show."""
    given = running.arguments
    if not given:
        return NotChecked(running.why(LOGS, "the arguments of the trainer are unknown"))
    save, load = given.get("--save"), given.get("--load")
    if not save:
        return [
            CheckHit((), "it runs without --save: nothing to resume from", "give --save, --load")
        ]
    if not load:
        message = "it runs without --load: a restart begins at iteration 0"
        return [CheckHit((), message, f"give --load {save}")]
    if save != load:
        message = f"it saves to {save} and loads from {load}: a restart goes back to the old one"
        return [CheckHit((), message, "make them equal")]
    return []


VOLUME_CHECKS = (
    RunningCheck(
        "data-files", CheckLevel.ERROR, "data files are whole, and not shared", _data_files
    ),
    RunningCheck("data-prefix", CheckLevel.ERROR, "the data that is named is there", _data_prefix),
    RunningCheck("running-save-load", CheckLevel.ERROR, "--save and --load as it runs", _save_load),
    RunningCheck("save-mount", CheckLevel.ERROR, "the save folder outlives the pod", _save_mount),
    RunningCheck("save-space", CheckLevel.ERROR, "there is room for two checkpoints", _space),
    RunningCheck("tracker", CheckLevel.WARNING, "the tracker names a whole, recent one", _tracker),
)
