# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of one save folder: which there are, and which are whole.

Reads Megatron's folders (`iter_0000020`, `release`) and Composer's (`ep0-ba100-rank0.pt`,
`ep0-ba100/`), what the trainer itself points at (`latest_checkpointed_iteration.txt`, the links
`latest-rank0.pt`), and what stopped saves left behind. Writes nothing.

The pointers are hints, not proof. It cannot know whether a save is still running: one that is
looks incomplete. Nor can it know whether the weights in a complete checkpoint are good ones.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Iterator, NamedTuple

from mwatch_trainer.checkpoint_files import (
    MAX_FILES,
    Contents,
    File,
    is_temporary,
    look_through,
    said,
)
from mwatch_trainer.checkpoint_folder import judge_folder, looks_like_checkpoint
from mwatch_trainer.checkpoint_neighbours import lost_rank
from mwatch_trainer.checkpoint_pointers import TRACKER, Pointer, find_pointers, read_tracker
from mwatch_trainer.checkpoint_ranks import judge_composer_files
from mwatch_trainer.checkpoint_verdict import Format, State, Verdict

__all__ = [
    "TRACKER", "Checkpoint", "Format", "Leftover", "Listing", "Name", "Pointer", "State",
    "has_checkpoints", "list_checkpoints", "list_names", "looks_like_checkpoint", "read_tracker",
    "verify",
]  # fmt: skip

NON_PERSISTENT = "non_persistent"
MAX_CHECKPOINTS = 200  # a large index takes a second to read
MAX_ENTRIES = 100_000  # of the save folder; Composer puts every rank's file there
MAX_LEFTOVERS = 100
_MEGATRON = re.compile(r"iter_([0-9]{1,18})|release", re.ASCII)
_COMPOSER_FILE = re.compile(r"(ep[0-9]{1,9}-ba([0-9]{1,18}))-rank([0-9]{1,7})(\.[\w.]+)?", re.ASCII)
_COMPOSER_FOLDER = re.compile(r"ep[0-9]{1,9}-ba([0-9]{1,18})", re.ASCII)


class Checkpoint(NamedTuple):
    name: str
    """Its path in the folder; Composer's `{rank}` stands for the numbers of several ranks."""
    format: Format
    iteration: int | None
    """None for Megatron's `release`; Composer's batch."""
    state: State
    reason: str | None
    """Why it is not complete; None where it is."""
    bytes: int
    files: int
    newest_mtime: float | None
    tracked: bool
    """The trainer's own pointer names it."""
    is_cut: bool
    """It has more files than were looked at: `bytes` and `files` are lower bounds."""


class Leftover(NamedTuple):
    name: str
    kind: str
    """`temporary`: of a save that was stopped; `non_persistent`: Megatron's second folder."""
    bytes: int
    files: int


class Listing(NamedTuple):
    checkpoints: tuple[Checkpoint, ...]
    """The newest first."""
    pointers: tuple[Pointer, ...]
    leftovers: tuple[Leftover, ...]
    left_out: int
    """Older checkpoints beyond the limit, which were not looked at."""
    is_cut: bool
    """The folder has more entries than were looked at."""


class Name(NamedTuple):
    name: str
    iteration: int | None
    files: tuple[str, ...]
    """Composer's files, one for each rank; empty for a folder."""


class _Candidate:
    def __init__(self, name: str, iteration: int | None) -> None:
        self.name = name
        self.iteration = iteration
        self.ranks: dict[int, str] = {}
        """Composer's files by rank; empty for a folder."""


def list_checkpoints(
    folder: str, max_checkpoints: int = MAX_CHECKPOINTS, max_files: int = MAX_FILES
) -> Listing:
    """OSError where the folder itself cannot be listed."""
    names = sorted(_names(folder))
    candidates = _newest_first(_candidates(names[:MAX_ENTRIES]))
    pointers = find_pointers(folder, names[:MAX_ENTRIES], _meant(candidates))
    tracked = {pointer.checkpoint for pointer in pointers}
    checkpoints: list[Checkpoint] = []
    leftovers = list(_leftovers_beside(folder, names, max_files))
    for candidate in candidates[:max_checkpoints]:
        contents = _contents(folder, candidate, max_files)
        checkpoint = _checkpoint(folder, candidate, contents, tracked, candidates)
        if _is_foreign(checkpoint):
            continue
        checkpoints.append(checkpoint)
        leftovers.extend(_temporary_inside(candidate.name, contents))
    return Listing(
        tuple(checkpoints),
        pointers,
        tuple(leftovers[:MAX_LEFTOVERS]),
        max(0, len(candidates) - max_checkpoints),
        len(names) > MAX_ENTRIES,
    )


def verify(folder: str, name: str, max_files: int = MAX_FILES) -> Checkpoint | None:
    """One checkpoint of the folder by its name; None where there is none of that name."""
    names = sorted(_names(folder))
    candidates = _newest_first(_candidates(names))
    pointers = find_pointers(folder, names, _meant(candidates))
    tracked = {pointer.checkpoint for pointer in pointers}
    for candidate in candidates:
        if candidate.name == name:
            contents = _contents(folder, candidate, max_files)
            return _checkpoint(folder, candidate, contents, tracked, candidates)
    return None


def list_names(folder: str) -> list[Name]:
    """What is there by its names alone, the newest first: no checkpoint is looked into.
    OSError where the folder itself cannot be listed."""
    found = _candidates(sorted(_names(folder))[:MAX_ENTRIES])
    names = [Name(each.name, each.iteration, tuple(each.ranks.values())) for each in found]
    return sorted(names, key=lambda each: each.iteration or 0, reverse=True)


def has_checkpoints(folder: str) -> bool:
    """By the names alone. OSError where the folder cannot be listed."""
    return bool(_candidates(list(_names(folder))))


def _names(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MAX_ENTRIES + 1), entries):
            yield entry.name


def _candidates(names: list[str]) -> list[_Candidate]:
    found: dict[str, _Candidate] = {}
    for name in names:
        folder = _MEGATRON.fullmatch(name) or _COMPOSER_FOLDER.fullmatch(name)
        if folder:
            found[name] = _Candidate(name, int(folder.group(1)) if folder.group(1) else None)
            continue
        file = _COMPOSER_FILE.fullmatch(name)
        if file and not is_temporary(name):
            whole = "{}-rank{{rank}}{}".format(file.group(1), file.group(4) or "")
            candidate = found.setdefault(whole, _Candidate(whole, int(file.group(2))))
            candidate.ranks[int(file.group(3))] = name
    for candidate in found.values():
        if list(candidate.ranks) == [0]:
            candidate.name = candidate.ranks[0]
    return list(found.values())


def _newest_first(candidates: list[_Candidate]) -> list[_Candidate]:
    """`release` has no number, and comes last."""
    order = [(-1 if each.iteration is None else each.iteration, each) for each in candidates]
    return [each for _, each in sorted(order, key=lambda pair: pair[0], reverse=True)]


def _meant(candidates: list[_Candidate]) -> dict[str, str]:
    """By the name of each file and folder, the checkpoint that it belongs to."""
    meant: dict[str, str] = {}
    for candidate in candidates:
        meant[candidate.name] = candidate.name
        meant.update((name, candidate.name) for name in candidate.ranks.values())
    return meant


def _contents(folder: str, candidate: _Candidate, max_files: int) -> Contents:
    if not candidate.ranks:
        return look_through(os.path.join(folder, candidate.name), max_files)
    contents = Contents()
    for name in candidate.ranks.values():
        try:
            status = os.stat(os.path.join(folder, name))
            contents.files[name] = File(status.st_size, status.st_mtime)
        except OSError as error:
            contents.problems[name] = said(error)
    return contents


def _checkpoint(
    folder: str,
    candidate: _Candidate,
    contents: Contents,
    tracked: set[str | None],
    candidates: list[_Candidate],
) -> Checkpoint:
    verdict = _judge(folder, candidate, contents)
    if verdict.format is Format.LEGACY and verdict.state is State.COMPLETE:
        numbered = [each.name for each in candidates if each.iteration is not None]
        lost = lost_rank(folder, candidate.name, contents, numbered)
        verdict = verdict if lost is None else Verdict(Format.LEGACY, State.INCOMPLETE, lost)
    newest = contents.newest_mtime
    if newest is None:
        with contextlib.suppress(OSError):
            newest = os.stat(os.path.join(folder, candidate.name)).st_mtime
    return Checkpoint(
        candidate.name,
        verdict.format,
        candidate.iteration,
        verdict.state,
        verdict.reason,
        contents.bytes,
        len(contents.files),
        newest,
        candidate.name in tracked,
        contents.is_cut,
    )


def _is_foreign(checkpoint: Checkpoint) -> bool:
    """`release` is a common name: without anything of Megatron in it, it is no checkpoint."""
    is_empty_of_ours = checkpoint.format is Format.UNKNOWN and checkpoint.state is State.INCOMPLETE
    return checkpoint.name == "release" and is_empty_of_ours and not checkpoint.tracked


def _judge(folder: str, candidate: _Candidate, contents: Contents) -> Verdict:
    if candidate.ranks:
        return judge_composer_files(folder, candidate.ranks)
    is_megatron = _MEGATRON.fullmatch(candidate.name) is not None
    return judge_folder(os.path.join(folder, candidate.name), contents, is_megatron)


def _leftovers_beside(folder: str, names: list[str], max_files: int) -> Iterator[Leftover]:
    for name in names:
        path = os.path.join(folder, name)
        if name == NON_PERSISTENT and os.path.isdir(path):
            contents = look_through(path, max_files)
            yield Leftover(name, "non_persistent", contents.bytes, len(contents.files))
        elif is_temporary(name):
            try:
                yield Leftover(name, "temporary", os.stat(path).st_size, 1)
            except OSError:  # gone, or a link to nothing: nothing is left over
                continue


def _temporary_inside(name: str, contents: Contents) -> Iterator[Leftover]:
    for path in contents.temporary:
        whole = os.path.join(name, path)
        yield Leftover(whole, "temporary", contents.files[path].bytes, 1)
