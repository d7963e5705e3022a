# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How the releases of Megatron-LM differ in what they print (reference: log-formats 1.5, 2.1)."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Literal, NamedTuple


class Release(NamedTuple):
    version: str
    has_micros: bool
    """Stamps with microseconds, and stamps on checkpoint lines."""
    keeps_first: bool
    """The first iteration of a process is printed without a reset of the means."""
    prints_zero: bool
    """A loss of exactly 0.0 (all steps skipped) is printed."""
    layout: str
    """Behind the path of a saved checkpoint; `{t}` and `{p}` are the parallel sizes."""
    loading: str
    guard: Literal["assert", "raise", "rerun"]
    """What becomes of a NaN that the guard sees."""
    rate: str = ".6E"

    @property
    def number(self) -> tuple[int, ...]:
        return tuple(map(int, self.version.split(".")))


RELEASES = (
    Release("0.6.0", False, False, False, "", "checkpoint", "assert", ".3E"),
    Release("0.8.0", False, False, False, "", "checkpoint", "assert"),
    Release("0.12.3", False, False, False, " [ t 1/{t}, p 1/{p} ]", "checkpoint", "raise"),
    Release("0.15.3", False, False, False, " [ t 1/{t}, p 1/{p} ]", "distributed", "rerun"),
    Release("0.16.1", True, True, False, " [ t 1/{t}, p 1/{p} ]", "distributed", "rerun"),
    Release("0.19.0", True, True, True, " [ t 1/{t}, gtp_remat 1/1, p 1/{p} ]", "distributed",
            "rerun"),
    Release("0.20.0", True, True, True, " [ t 1/{t}, gtp_remat 1/1, p 1/{p} ]", "distributed",
            "rerun"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def _second(whole: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(whole))


def stamp(at: float, release: Release) -> str:
    whole = int(at)
    text = _second(whole)
    return f"{text}.{int((at - whole) * 1e6):06d}" if release.has_micros else text


def glog(at: float) -> str:
    """The stamp of glog lines (torch): month and day without a year."""
    moment = time.gmtime(int(at))
    micros = int((at % 1) * 1e6)
    return time.strftime("%m%d %H:%M:%S", moment) + f".{micros:06d}"
