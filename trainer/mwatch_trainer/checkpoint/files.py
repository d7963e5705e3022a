# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint: what is there, how long, and whether a torch file has its end.

Everything is bounded and nothing is written. A link to a file counts as the file; a link to a
folder is never entered. It cannot know whether the bytes of a file are the right ones, and a
file system that hangs makes it hang too.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zipfile
from typing import BinaryIO, NamedTuple

MAX_FILES = 100_000  # 32,768 ranks with three files each
MAX_DEPTH = 4  # Megatron's own folders are one deep, tokenizers two
_ZIP_START = b"PK\x03\x04"
_OLD_TORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch before 1.6
# torch: `.metadata.tmp`, `__3.metadata.tmp`; Megatron: `.metadata.bck`, `x.tmp.3`;
# nvidia-resiliency-ext: `iter_0000010_0_local.dirty.pt`. Shards have no temporary name.
_TEMPORARY = re.compile(r".*\.(tmp|tmp\.[0-9]+|dirty|dirty\.pt)|\.metadata\.bck", re.DOTALL)


class File(NamedTuple):
    bytes: int
    mtime: float


class Contents:
    """What lies in one folder; paths are relative to it."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.folders: list[str] = []
        self.problems: dict[str, str] = {}
        """Path -> why it could not be looked at; `.` is the folder itself."""
        self.is_cut = False
        """There are more files than were looked at."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def newest_mtime(self) -> float | None:
        return max((file.mtime for file in self.files.values()), default=None)

    def has(self, folder: str, path: str) -> bool:
        """Also of a file that lies beyond those that were looked at."""
        return path in self.files or (self.is_cut and os.path.exists(os.path.join(folder, path)))

    @property
    def temporary(self) -> list[str]:
        return sorted(path for path in self.files if is_temporary(os.path.basename(path)))


def is_temporary(name: str) -> bool:
    """Whether a save that was stopped left a file of this name behind."""
    return _TEMPORARY.fullmatch(name) is not None


def look_through(folder: str, max_files: int = MAX_FILES) -> Contents:
    """All files below `folder`. What cannot be looked at is a problem of the result, no error."""
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
    """OSError for what is not a regular file: a named pipe would hold us for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(descriptor, "rb")
    except OSError:
        os.close(descriptor)
        raise


def read_bounded(path: str, max_bytes: int) -> bytes:
    """A regular file as a whole; OSError for any other, and for one that is larger."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes")
    return data


class TorchFile(NamedTuple):
    """One file of `torch.save`: `flaw` is certain, `doubt` means that it could not be checked."""

    flaw: str | None = None
    doubt: str | None = None


def check_torch_file(path: str) -> TorchFile:
    """A zip is written front to back, so one with its directory at the end was finished."""
    try:
        with open_regular(path) as file:
            start = file.read(len(_OLD_TORCH_START))
            is_zip = zipfile.is_zipfile(file)
    except FileNotFoundError:
        return TorchFile(flaw="is missing")
    except zipfile.BadZipFile:
        return TorchFile(flaw="is damaged")
    except OSError as error:
        return TorchFile(doubt=f"cannot be read: {os_error_text(error)}")
    if not start:
        return TorchFile(flaw="is empty")
    if is_zip:
        return TorchFile()
    if start == _OLD_TORCH_START:
        return TorchFile(doubt="is of torch before 1.6, whose end cannot be checked")
    if start.startswith(_ZIP_START):
        return TorchFile(flaw="is cut short: the directory at its end is missing")
    return TorchFile(flaw="is not a file of torch.save")
