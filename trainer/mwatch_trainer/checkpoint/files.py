# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lists and checks a checkpoint's files within limits, and defines the verdict on them.

*Complete* and *incomplete* are proven; a checkpoint that could not be checked is *unverified*. A
link to a file counts as the file; a link to a folder is not followed. Nothing is written. If the
file system hangs, these functions hang too.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zipfile
from enum import Enum
from typing import BinaryIO, Callable, Iterable, NamedTuple

from mwatch_trainer.checkpoint.safe_pickle import shown

MAX_FILES = 100_000  # 32,768 ranks with three files each
MAX_DEPTH = 4  # Megatron's own folders are one deep, tokenizers two
# torch: `.metadata.tmp`, `__3.metadata.tmp`; Megatron: `.metadata.bck`, `x.tmp.3`;
# nvidia-resiliency-ext: `iter_0000010_0_local.dirty.pt`. Shards have no temporary name.
_TEMPORARY = re.compile(r".*\.(tmp|tmp\.[0-9]+|dirty|dirty\.pt)|\.metadata\.bck", re.DOTALL)


class File(NamedTuple):
    bytes: int
    mtime: float


class Contents:
    """The contents of one folder; paths are relative to it."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: list[str] = []
        self.problems: dict[str, str] = {}
        """Path -> reason why it could not be read; `.` is the folder itself."""
        self.is_cut = False  # there are more files than were listed

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def newest_mtime(self) -> float | None:
        return max((file.mtime for file in self.files.values()), default=None)

    def has(self, folder: str, path: str) -> bool:
        """Whether the file exists, even if the listing was cut before it."""
        return path in self.files or (self.is_cut and os.path.exists(os.path.join(folder, path)))

    @property
    def temporary(self) -> list[str]:
        return sorted(path for path in self.files if is_temporary(os.path.basename(path)))


def is_temporary(name: str) -> bool:
    """Whether an interrupted save leaves behind files with such a name."""
    return _TEMPORARY.fullmatch(name) is not None


def look_through(folder: str, max_files: int = MAX_FILES) -> Contents:
    contents = Contents()
    waiting = [""]
    while waiting and not contents.is_cut:
        inside = waiting.pop()
        try:
            with os.scandir(os.path.join(folder, inside)) as entries:
                for entry in entries:
                    if len(contents.files) + len(contents.folders) >= max_files:
                        contents.is_cut = True
                        break
                    _look_at(entry, os.path.join(inside, entry.name), contents, waiting)
        except OSError as error:
            contents.problems[inside or "."] = f"cannot be listed: {os_error_text(error)}"
    return contents


def _look_at(entry: os.DirEntry[str], path: str, contents: Contents, waiting: list[str]) -> None:
    try:
        if entry.is_dir(follow_symlinks=False):
            contents.folders.append(path)
            if path.count(os.sep) < MAX_DEPTH:
                waiting.append(path)
            return
        status = entry.stat()
    except OSError as error:
        unlisted = f"cannot be read: {os_error_text(error)}"
        contents.problems[path] = "is a link to nothing" if _is_link(entry) else unlisted
        return
    if stat.S_ISREG(status.st_mode):
        contents.files[path] = File(status.st_size, status.st_mtime)
    elif stat.S_ISDIR(status.st_mode):
        contents.problems[path] = "is a link to a folder, which is not followed"
    else:
        contents.problems[path] = "is not a regular file"


def _is_link(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_symlink()
    except OSError:
        return False


def os_error_text(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def open_regular(path: str) -> BinaryIO:
    """Open a regular file. Raises OSError for other kinds, because a named pipe would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_bounded(path: str, max_bytes: int) -> bytes:
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return data


_ZIP_START = b"PK\x03\x04"
_OLD_TORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch before 1.6


class CheckpointState(str, Enum):
    COMPLETE = "complete"
    UNVERIFIED = "unverified"
    INCOMPLETE = "incomplete"


class Format(str, Enum):
    TORCH_DIST = "torch_dist"
    TORCH_DCP = "torch_dcp"
    """An index without Megatron's `metadata.json`: Megatron's `torch_dcp` and `fsdp_dtensor`."""
    LEGACY = "legacy"
    COMPOSER = "composer"
    COMPOSER_SHARDED = "composer_sharded"
    UNKNOWN = "unknown"


class CheckpointVerdict(NamedTuple):
    format: Format
    state: CheckpointState
    reason: str | None  # why it is not complete


class Flaw(Exception):
    """Proof that the checkpoint is incomplete."""


class Doubt(Exception):
    """The reason why the checkpoint could not be checked."""


def judge(kind: Format, check: Callable[[], None]) -> CheckpointVerdict:
    try:
        check()
    except Flaw as flaw:
        return CheckpointVerdict(kind, CheckpointState.INCOMPLETE, str(flaw))
    except Doubt as doubt:
        return CheckpointVerdict(kind, CheckpointState.UNVERIFIED, str(doubt))
    return CheckpointVerdict(kind, CheckpointState.COMPLETE, None)


def plain(path: str) -> str:
    return path if path.isprintable() and len(path) <= 100 else shown(path)


def first_of(texts: list[str]) -> str:
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    return texts[0] + more


def check_torch_files(folder: str, paths: Iterable[str]) -> None:
    doubts: list[str] = []
    for path in paths:
        try:
            _check_torch_file(os.path.join(folder, path))
        except Flaw as flaw:
            raise Flaw(f"{plain(path)} {flaw}") from None
        except Doubt as doubt:
            doubts.append(f"{plain(path)} {doubt}")
    if doubts:
        raise Doubt(first_of(doubts))


def _check_torch_file(path: str) -> None:
    """Check that the file is complete: a zip file's directory is written last."""
    try:
        with open_regular(path) as file:
            start = file.read(len(_OLD_TORCH_START))
            is_zip = zipfile.is_zipfile(file)
    except FileNotFoundError:
        raise Flaw("is missing") from None
    except zipfile.BadZipFile:
        raise Flaw("is damaged") from None
    except OSError as error:
        raise Doubt(f"cannot be read: {os_error_text(error)}") from None
    if is_zip:
        return
    if not start:
        raise Flaw("is empty")
    if start == _OLD_TORCH_START:
        raise Doubt("is of torch before 1.6, whose end cannot be checked")
    if start.startswith(_ZIP_START):
        raise Flaw("is cut short: the directory at its end is missing")
    raise Flaw("is not a file of torch.save")
