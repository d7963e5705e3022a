# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints are written: tiers, and how fast each takes bytes.

Lustre services sell throughput by capacity, so a tier alone says nothing: 16 TiB of AMLFS 125
take 2 GB/s, 512 TiB take 64. Sources: the document about AKS (AMLFS: 40 to 500 MB/s a TiB, with
48 to 4 TiB at least), AWS's API reference (FSx for Lustre PERSISTENT_2: 125 to 1000, from
1.2 TiB), Azure's limits of a standard account (25 Gbit/s into it, by default). A quota, a small
client or many small files make any of them slower.
"""

from __future__ import annotations

from typing import NamedTuple

TIB = 1024.0**4


class Tier(NamedTuple):
    name: str
    mbytes_per_tib: float | None
    """MB/s a TiB; None: it has one rate whatever its size."""
    least_tib: float
    flat_gbytes: float = 0.0
    usual_tib: float = 0.0
    """Capacity that is taken where none is given; of the AMLFS table in the document."""

    def gbytes(self, tib: float) -> float:
        """GB/s."""
        if self.mbytes_per_tib is None:
            return self.flat_gbytes
        return self.mbytes_per_tib * tib / 1000


TIERS: dict[str, Tier] = {
    each.name: each
    for each in (
        Tier("amlfs-40", 40, 48, usual_tib=480),
        Tier("amlfs-125", 125, 16, usual_tib=512),
        Tier("amlfs-250", 250, 8, usual_tib=512),
        Tier("amlfs-500", 500, 4, usual_tib=512),
        Tier("blob", None, 0, flat_gbytes=25 / 8),
        Tier("fsx-125", 125, 1.2, usual_tib=100.8),
        Tier("fsx-250", 250, 1.2, usual_tib=100.8),
        Tier("fsx-500", 500, 1.2, usual_tib=100.8),
        Tier("fsx-1000", 1000, 1.2, usual_tib=100.8),
    )
}


class Store(NamedTuple):
    """A tier at a size, or a rate that a person measured."""

    name: str
    gbytes: float
    tib: float | None = None

    def seconds(self, size: float) -> float:
        """To take or to give back so many bytes, at its best."""
        return size / (self.gbytes * 1e9)

    @property
    def told(self) -> str:
        return self.name if self.tib is None else f"{self.name} {self.tib:g} TiB"


def store(tier: Tier, tib: float | None = None) -> Store:
    size = tier.usual_tib if tib is None else tib
    return Store(tier.name, tier.gbytes(size), size or None)


def usual_stores(cloud: str) -> tuple[Store, ...]:
    """What to compare where none was named: that cloud's, else all."""
    kinds = {"azure": ("amlfs", "blob"), "aws": ("fsx",)}.get(cloud, ("amlfs", "blob", "fsx"))
    return tuple(store(each) for name, each in TIERS.items() if name.startswith(kinds))
