# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller may do to the jobs of a namespace: `mwatch controller --fleet FILE`.

The TOML file lists only the values that differ from the defaults; maintenance times are UTC. A
job's own policy (`model.settings`) must also allow an action. An unknown key is an error that names
the key.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from mwatch.config import loader
from mwatch.model.settings import Amount, Count, Seconds, Share

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
KeepOut = Literal["off", "affinity", "cordon"]
Positive = Annotated[int, Meta(ge=1, le=10**9, description="a whole number from 1 on")]
TimeOfDay = Annotated[
    str,
    Meta(
        pattern=r"\A(?:(?:[01]?\d|2[0-3]):[0-5]\d|24:00)\Z",
        description='a time such as "02:00" (UTC)',
    ),
]


class MaintenanceWindow(Struct, frozen=True, forbid_unknown_fields=True):
    """Period in which storage or network maintenance may cause stalls: nothing is restarted."""

    begin: TimeOfDay = field(name="from")
    end: TimeOfDay = field(name="to")  # on the next day unless later than `begin`
    days: Annotated[
        frozenset[Day], Meta(min_length=1, description=f"some of {', '.join(DAYS)}")
    ] = frozenset(DAYS)
    why: Annotated[str, Meta(max_length=200, description="a text of at most 200 characters")] = ""

    def holds(self, now: float) -> bool:
        moment = datetime.fromtimestamp(now, UTC)
        minute, day = moment.hour * 60 + moment.minute, moment.weekday()
        begin, end = _minutes(self.begin), _minutes(self.end)
        if begin < end:
            return DAYS[day] in self.days and begin <= minute < end
        return (DAYS[day] in self.days and minute >= begin) or (
            DAYS[day - 1] in self.days and minute < end
        )


def _minutes(time: str) -> int:
    hours, _, minutes = time.partition(":")
    return int(hours) * 60 + int(minutes)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    acting: bool = True  # `mwatch pause --all` also stops all actions
    max_restarts_at_once: Positive = 2
    """Gangs restarted at the same time: if all restart at once, none of them recovers."""
    recovery_seconds: Seconds = 900.0
    """How long a restarted job counts towards that limit, unless it trains again earlier."""
    common_cause_seconds: Seconds = 120.0
    """Jobs that stall within this time of each other are suspected of a common cause."""
    common_cause_least: Positive = 2
    common_cause_share: Share = 0.3
    """Minimum share of the jobs on the shared resource that stall: two of fifty are chance."""
    common_cause_hold_seconds: Seconds = 1800.0
    """How long restarts wait for a common cause to pass. Later a stall rarely recovers, and the
    jobs are restarted, some at a time."""
    switch_labels: Annotated[tuple[str, ...], Meta(description="a list of labels")] = (
        "topology.kubernetes.io/rack",
        # Labels of NVIDIA's topograph, whose names differ between its releases.
        "network.topology.nvidia.com/accelerator",
        "network.topology.nvidia.com/block",
        "network.topology.nvidia.com/leaf",
        "fabric.topograph.run/tier-0",
        "accelerator.topograph.run/domain",
        "nvidia.com/gpu.clique",
        "topology.k8s.aws/network-node-layer-3",
        "cloud.google.com/gce-topology-subblock",
    )
    """Node labels: nodes with the same value share a switch or rack."""
    maintenance: Annotated[
        tuple[MaintenanceWindow, ...],
        Meta(description='[[maintenance]] tables with days = ["sun"], from = "02:00", to and why'),
    ] = ()
    keep_node_out: KeepOut = "off"
    max_avoided: Count = 4
    avoid_hours: Amount = 24.0
    in_place: bool = True
    rendezvous_wait_seconds: Seconds = 15.0
    """Wait after the last old process has ended: a rendezvous remembers its members this long."""
    evidence_seconds: Seconds = 20.0
    max_view_age_seconds: Seconds = 30.0  # the controller does not act on older data about a job
    workers: Positive = 4

    def maintained(self, now: float) -> MaintenanceWindow | None:
        return next((each for each in self.maintenance if each.holds(now)), None)


_OLD_KEYS = {"max_sight_seconds": "max_view_age_seconds"}


def load(file: Path) -> FleetSettings:
    """Raises InputError for an unreadable file or an invalid setting."""
    return loader.load(file, FleetSettings(), check="the path of --fleet", aliases=_OLD_KEYS)
