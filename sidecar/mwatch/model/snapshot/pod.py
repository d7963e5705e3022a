# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What only a pod can see of what its training stands on: data files, mounts, free space."""

from __future__ import annotations

from typing import NamedTuple


class DataFile(NamedTuple):
    """One prefix of `--data-path`: Megatron reads `PREFIX.bin` and `PREFIX.idx`."""

    prefix: str
    bin_bytes: int | None
    """None: it is not there, or (`is_unseen`) nobody here can say."""
    idx_bytes: int | None
    is_unseen: bool = False
    """Not even its folder is mounted here."""


class Mount(NamedTuple):
    path: str
    """The folder that was asked about."""
    point: str
    """Where the file system that holds it is mounted."""
    kind: str
    """`nfs4`, `lustre`, `overlay`…"""
    is_read_only: bool
    free_bytes: int | None
    size_bytes: int | None


class PodFacts(NamedTuple):
    data: tuple[DataFile, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tracker: str | None = None
    """The trainer's own word on its newest checkpoint."""


class Who(NamedTuple):
    """Whose snapshot it is."""

    run: str
    pod: str
    uid: str | None
    namespace: str | None
    node: str | None
    boot: str | None
    """The kernel's id of this boot: with it monotonic times of one machine compare."""
    mwatch: str
    started_at: float
    mode: str | None
