# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the checkpoints of one save folder and determines which are complete.

Reads Megatron's folders (`iter_0000020`, `release`) and Composer's (`ep0-ba100-rank0.pt`,
`ep0-ba100/`), the trainer's own pointers (`latest_checkpointed_iteration.txt`, the links
`latest-rank0.pt`), and leftovers of interrupted saves. Writes nothing.

The pointers are hints: the tracker may be written before all shards are, and a link may be
dangling. A save in progress looks incomplete. Whether the weights are good is not checked here.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from itertools import islice
from typing import Iterator, Mapping, NamedTuple, Sequence

from mwatch_trainer.checkpoint.files import (
    MAX_FILES,
    CheckpointState,
    CheckpointVerdict,
    Contents,
    File,
    Format,
    is_temporary,
    look_through,
    os_error_text,
    read_bounded,
)
from mwatch_trainer.checkpoint.formats import (
    CONFIG,
    INDEX,
    Rank,
    folder_of,
    judge_composer_files,
    judge_composer_folder,
    judge_legacy,
    judge_torch_dist,
    judge_without_config,
    rank_of,
)


def judge_folder(folder: str, contents: Contents, is_megatron: bool) -> CheckpointVerdict:
    """Judge a folder of Megatron (`iter_N`, `release`) or Composer (`epN-baN`) by its files.

    A `torch_dcp` checkpoint looks like a `torch_dist` one that was interrupted before
    `metadata.json`, unless the index shows the difference.
    """
    unlisted = _unlisted(folder, contents)
    if unlisted is not None:
        return unlisted
    if not is_megatron:
        return judge_composer_folder(folder, contents)
    names = _top_names(folder, contents)
    if CONFIG in names:
        return judge_torch_dist(folder, contents)
    if any(map(rank_of, names)):
        return judge_legacy(folder, contents)
    if INDEX in names or any(name.endswith((".distcp", INDEX + ".tmp")) for name in names):
        return judge_without_config(folder, contents)
    reason = "holds no shard, no index and no mp_rank folder"
    if not names:
        reason = "the folder is empty: the save was stopped before its first file"
    return CheckpointVerdict(Format.UNKNOWN, CheckpointState.INCOMPLETE, reason)


def looks_like_checkpoint(folder: str) -> bool:
    """Whether this folder is a single checkpoint rather than a folder of checkpoints."""
    with os.scandir(folder) as entries:
        names = {entry.name for entry in islice(entries, MAX_FILES)}
    return not names.isdisjoint({INDEX, CONFIG}) or any(map(rank_of, names))


def _unlisted(folder: str, contents: Contents) -> CheckpointVerdict | None:
    """Return the verdict if the path is not a folder or cannot be listed, else None."""
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except FileNotFoundError:
        reason = "is a link to nothing" if os.path.islink(folder) else "went away meanwhile"
        return CheckpointVerdict(Format.UNKNOWN, CheckpointState.INCOMPLETE, reason)
    except OSError as error:
        reason = f"cannot be read: {os_error_text(error)}"
        return CheckpointVerdict(Format.UNKNOWN, CheckpointState.UNVERIFIED, reason)
    if not is_folder:
        return CheckpointVerdict(Format.UNKNOWN, CheckpointState.INCOMPLETE, "is not a folder")
    if "." in contents.problems:
        return CheckpointVerdict(Format.UNKNOWN, CheckpointState.UNVERIFIED, contents.problems["."])
    return None


def _top_names(folder: str, contents: Contents) -> set[str]:
    seen = [*contents.files, *contents.folders, *contents.problems]
    names = {path.partition(os.sep)[0] for path in seen}
    if contents.is_cut:  # these two decide the verdict, so look for them explicitly
        names.update(name for name in (CONFIG, INDEX) if contents.has(folder, name))
    return names


_NEIGHBOURS = 2  # compared checkpoints on either side
_LIGHTER = 0.95  # padding and random states differ by less than this between layouts


def lost_rank(folder: str, name: str, contents: Contents, names: Sequence[str]) -> str | None:
    """Return a message if a legacy checkpoint lacks a rank that its neighbours in `names` have.

    By itself, a grid without its last row looks like a smaller grid. A job continued with fewer
    ranks also has a smaller grid, but the same number of bytes: a rank is lost only if both the
    grid and the size are smaller. A rank missing in all checkpoints is not detected.
    """
    if name not in names:
        return None  # `release`
    own = _ranks(contents.folders)
    for other in _beside(name, names):
        theirs = _ranks(_folders(os.path.join(folder, other)))
        lost = sorted(theirs - own)
        if not lost or not own < theirs:
            continue
        if contents.bytes < look_through(os.path.join(folder, other)).bytes * _LIGHTER:
            return f"{folder_of(lost[0])} is missing, which {other} has"
    return None


def _beside(name: str, names: Sequence[str]) -> list[str]:
    place = names.index(name)
    before = names[max(0, place - _NEIGHBOURS) : place]
    return [*reversed(before), *names[place + 1 : place + 1 + _NEIGHBOURS]]


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _ranks(names: Sequence[str]) -> set[Rank]:
    return {rank for rank in map(rank_of, names) if rank is not None}


TRACKER = "latest_checkpointed_iteration.txt"
_MAX_TRACKER_BYTES = 256  # Megatron writes up to 20
_LATEST = re.compile(r"latest(-sharded)?-rank[0-9]{1,7}(\.[\w.]+)?", re.ASCII)
MAX_POINTERS = 100


class Pointer(NamedTuple):
    """A pointer to the checkpoint that the trainer would load by itself."""

    file: str
    value: str | None  # `20`, `release`, or the target of Composer's link; None if unreadable
    checkpoint: str | None  # the checkpoint in this folder that it points to, if any
    problem: str | None


def read_tracker(folder: str) -> Pointer | None:
    try:
        text = read_bounded(os.path.join(folder, TRACKER), _MAX_TRACKER_BYTES).decode("ascii")
    except FileNotFoundError:
        return None
    except OSError as error:
        return Pointer(TRACKER, None, None, f"cannot be read: {os_error_text(error)}")
    except UnicodeDecodeError:
        return Pointer(TRACKER, None, None, "holds no number and no `release`")
    value = text.strip()
    if not value:
        return Pointer(TRACKER, None, None, "is empty")
    if value == "release":
        return Pointer(TRACKER, value, None, None)
    if re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        return Pointer(TRACKER, str(int(value)), None, None)
    return Pointer(TRACKER, None, None, f"holds {value[:40]!a}, no number")


def find_pointers(folder: str, names: list[str], meant: Mapping[str, str]) -> tuple[Pointer, ...]:
    """Return the tracker and Composer's links. `meant`: checkpoint by file or folder name."""
    found = []
    tracker = read_tracker(folder)
    if tracker:
        value = tracker.value
        name = f"iter_{int(value):07d}" if value and value.isdigit() else str(value)
        found.append(tracker._replace(checkpoint=meant.get(name)))
    for name in names:
        if _LATEST.fullmatch(name) and len(found) <= MAX_POINTERS:
            found.append(_link(folder, name, meant))
    return tuple(found)


def _link(folder: str, name: str, meant: Mapping[str, str]) -> Pointer:
    try:
        target = os.readlink(os.path.join(folder, name))
    except OSError:
        return Pointer(name, None, None, "is not a link")
    # Not resolved further: if the target's path contains a link, it is in another folder.
    inside = os.path.relpath(os.path.join(folder, target), folder)
    return Pointer(name, target, meant.get(inside), None)


NON_PERSISTENT = "non_persistent"
MAX_CHECKPOINTS = 200  # a large index takes a second to read
MAX_ENTRIES = 100_000  # in the save folder; Composer puts every rank's file there
MAX_LEFTOVERS = 100
_MEGATRON = re.compile(r"iter_([0-9]{1,18})|release", re.ASCII)
_COMPOSER_FILE = re.compile(r"(ep[0-9]{1,9}-ba([0-9]{1,18}))-rank([0-9]{1,7})(\.[\w.]+)?", re.ASCII)
_COMPOSER_FOLDER = re.compile(r"ep[0-9]{1,9}-ba([0-9]{1,18})", re.ASCII)


class ListedCheckpoint(NamedTuple):
    name: str  # path in the folder; Composer's `{rank}` stands for several ranks
    format: Format
    iteration: int | None  # Composer's batch; None for Megatron's `release`
    state: CheckpointState
    reason: str | None  # why it is not complete
    bytes: int
    files: int
    newest_mtime: float | None
    tracked: bool  # the trainer's own pointer names it
    is_cut: bool  # it has more files than were listed: `bytes` and `files` are lower bounds


class Leftover(NamedTuple):
    name: str
    kind: str  # `temporary`: of an interrupted save; `non_persistent`: Megatron's second folder
    bytes: int
    files: int


class FolderListing(NamedTuple):
    checkpoints: tuple[ListedCheckpoint, ...]  # newest first
    pointers: tuple[Pointer, ...]
    leftovers: tuple[Leftover, ...]
    left_out: int  # number of older checkpoints that were not checked
    is_cut: bool  # the folder has more entries than were listed


class CheckpointName(NamedTuple):
    name: str
    iteration: int | None
    files: tuple[str, ...]  # Composer's files, one per rank; empty for a folder


class _Candidate:
    def __init__(self, name: str, iteration: int | None) -> None:
        self.name = name
        self.iteration = iteration
        self.ranks: dict[int, str] = {}  # Composer's files by rank; empty for a folder


def list_checkpoints(
    folder: str, max_checkpoints: int = MAX_CHECKPOINTS, max_files: int = MAX_FILES
) -> FolderListing:
    """List and judge the newest checkpoints. Raises OSError if the folder cannot be listed."""
    names = sorted(_names(folder))
    candidates = _newest_first(_candidates(names[:MAX_ENTRIES]))
    pointers = find_pointers(folder, names[:MAX_ENTRIES], _meant(candidates))
    tracked = {pointer.checkpoint for pointer in pointers}
    checkpoints: list[ListedCheckpoint] = []
    leftovers = list(_leftovers_beside(folder, names, max_files))
    for candidate in candidates[:max_checkpoints]:
        contents = _contents(folder, candidate, max_files)
        checkpoint = _checkpoint(folder, candidate, contents, tracked, candidates)
        if _is_foreign(checkpoint):
            continue
        checkpoints.append(checkpoint)
        leftovers.extend(
            Leftover(os.path.join(candidate.name, path), "temporary", contents.files[path].bytes, 1)
            for path in contents.temporary
        )
    return FolderListing(
        tuple(checkpoints),
        pointers,
        tuple(leftovers[:MAX_LEFTOVERS]),
        max(0, len(candidates) - max_checkpoints),
        len(names) > MAX_ENTRIES,
    )


def verify(folder: str, name: str, max_files: int = MAX_FILES) -> ListedCheckpoint | None:
    """Judge one checkpoint of the folder by name; None if there is none of that name."""
    names = sorted(_names(folder))
    candidates = _newest_first(_candidates(names))
    pointers = find_pointers(folder, names, _meant(candidates))
    tracked = {pointer.checkpoint for pointer in pointers}
    for candidate in candidates:
        if candidate.name == name:
            contents = _contents(folder, candidate, max_files)
            return _checkpoint(folder, candidate, contents, tracked, candidates)
    return None


def list_names(folder: str) -> list[CheckpointName]:
    """List by name only, newest first. Raises OSError if the folder cannot be listed."""
    found = _candidates(sorted(_names(folder))[:MAX_ENTRIES])
    names = [
        CheckpointName(each.name, each.iteration, tuple(each.ranks.values())) for each in found
    ]
    return sorted(names, key=lambda each: each.iteration or 0, reverse=True)


def has_checkpoints(folder: str) -> bool:
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
    """Sort; `release` has no number and comes last."""
    return sorted(
        candidates, key=lambda each: -1 if each.iteration is None else each.iteration, reverse=True
    )


def _meant(candidates: list[_Candidate]) -> dict[str, str]:
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
            contents.problems[name] = os_error_text(error)
    return contents


def _checkpoint(
    folder: str,
    candidate: _Candidate,
    contents: Contents,
    tracked: set[str | None],
    candidates: list[_Candidate],
) -> ListedCheckpoint:
    verdict = _judge(folder, candidate, contents)
    if verdict.format is Format.LEGACY and verdict.state is CheckpointState.COMPLETE:
        numbered = [each.name for each in candidates if each.iteration is not None]
        lost = lost_rank(folder, candidate.name, contents, numbered)
        if lost is not None:
            verdict = CheckpointVerdict(Format.LEGACY, CheckpointState.INCOMPLETE, lost)
    newest = contents.newest_mtime
    if newest is None:
        with contextlib.suppress(OSError):
            newest = os.stat(os.path.join(folder, candidate.name)).st_mtime
    return ListedCheckpoint(
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


def _is_foreign(checkpoint: ListedCheckpoint) -> bool:
    """Whether a folder named `release`, a common name, contains no Megatron checkpoint."""
    if checkpoint.name != "release" or checkpoint.tracked:
        return False
    return checkpoint.format is Format.UNKNOWN and checkpoint.state is CheckpointState.INCOMPLETE


def _judge(folder: str, candidate: _Candidate, contents: Contents) -> CheckpointVerdict:
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
            except OSError:  # deleted meanwhile, or a dangling link: not a leftover
                continue
