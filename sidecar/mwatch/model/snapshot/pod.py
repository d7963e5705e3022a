# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What only a pod can see of what its training stands on: data files, mounts, free space."""

from __future__ import annotations

from msgspec import Struct


class DataFile(Struct, frozen=True, omit_defaults=True, rename={"is_unobservable": "is_unseen"}):
    """One prefix of `--data-path`: Megatron reads `PREFIX.bin` and `PREFIX.idx`."""

    prefix: str
    bin_bytes: int | None = None
    """None: it is not there, or (`is_unobservable`) nobody here can say."""
    idx_bytes: int | None = None
    is_unobservable: bool = False
    """Not even its folder is mounted here."""


class Mount(Struct, frozen=True, omit_defaults=True):
    path: str
    """The folder that was asked about."""
    point: str
    """Where the file system that holds it is mounted."""
    kind: str
    """`nfs4`, `lustre`, `overlay`…"""
    is_read_only: bool = False
    free_bytes: int | None = None
    size_bytes: int | None = None


class PodFacts(Struct, frozen=True, omit_defaults=True):
    data: tuple[DataFile, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tracker: str | None = None
    """The trainer's own word on its newest checkpoint."""


class PodId(Struct, frozen=True, omit_defaults=True):
    """Whose snapshot it is."""

    run: str
    pod: str
    uid: str | None = None
    namespace: str | None = None
    node: str | None = None
    boot: str | None = None
    """The kernel's id of this boot: with it monotonic times of one machine compare."""
    mwatch: str | None = None
    started_at: float | None = None
    mode: str | None = None
