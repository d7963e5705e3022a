# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller may do to all jobs of a namespace together: `mwatch controller --fleet FILE`.

TOML, with what differs from these values; times of maintenance are UTC. What a job's own policy
allows is another matter (`model.settings`), and both must agree. A wrong key is refused by name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mwatch.errors import InputError

MAX_BYTES = 1_000_000
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MINUTES = 24 * 60
KeepOut = Literal["off", "affinity", "cordon"]


class MaintenanceWindow(NamedTuple):
    """In it a stall may be the storage's or the network's own upkeep: nothing is restarted."""

    days: frozenset[int]
    """0 is Monday."""
    begin: int
    """Minutes after midnight, UTC; an end that is not later is of the next day."""
    end: int
    why: str = ""

    def holds(self, now: float) -> bool:
        moment = datetime.fromtimestamp(now, UTC)
        minute, day = moment.hour * 60 + moment.minute, moment.weekday()
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        before = (day - 1) % 7
        return (day in self.days and minute >= self.begin) or (
            before in self.days and minute < self.end
        )


@dataclass(frozen=True, slots=True)
class FleetSettings:
    acting: bool = True
    """The one switch of this file; `mwatch pause --all` is the other."""
    max_restarts_at_once: int = 2
    """Of whole gangs: a cluster that restarts everything at once recovers nothing."""
    recovery_seconds: float = 900.0
    """A restarted job counts among these until it trains again, for no longer than this."""
    common_cause_seconds: float = 120.0
    """Jobs that stall within so long of each other may have one reason."""
    common_cause_least: int = 2
    common_cause_share: float = 0.3
    """And so many of those that share a thing: two of fifty on one volume are chance."""
    common_cause_hold_seconds: float = 1800.0
    """What has not healed by then rarely does: the jobs are restarted, some at a time."""
    switch_labels: tuple[str, ...] = (
        "topology.kubernetes.io/rack",
        # NVIDIA's topograph, under the names of its releases.
        "network.topology.nvidia.com/accelerator",
        "network.topology.nvidia.com/block",
        "network.topology.nvidia.com/leaf",
        "fabric.topograph.run/tier-0",
        "accelerator.topograph.run/domain",
        "nvidia.com/gpu.clique",
        "topology.k8s.aws/network-node-layer-3",
        "cloud.google.com/gce-topology-subblock",
    )
    """Of nodes: those with the same value hang on the same switch or rack."""
    maintenance: tuple[MaintenanceWindow, ...] = ()
    keep_node_out: KeepOut = "off"
    max_avoided: int = 4
    avoid_hours: float = 24.0
    in_place: bool = True
    rendezvous_wait_seconds: float = 15.0
    """After the last old process: a rendezvous keeps those it knew for so long."""
    evidence_seconds: float = 20.0
    max_sight_seconds: float = 30.0
    """Nothing is done about a job that was last seen longer ago."""
    workers: int = 4

    def maintained(self, now: float) -> MaintenanceWindow | None:
        return next((each for each in self.maintenance if each.holds(now)), None)


def load(file: Path) -> FleetSettings:
    """InputError where it cannot be read, or says what is no setting."""
    try:
        data = file.read_bytes()[: MAX_BYTES + 1]
        tree = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check the path") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is no TOML: {' '.join(str(error).split())}") from None
    return apply(tree, str(file))


def apply(tree: Mapping[str, Any], origin: str) -> FleetSettings:
    usual = FleetSettings()
    known = {each.name: getattr(usual, each.name) for each in fields(FleetSettings)}
    changed: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in known:
            raise InputError(f"{origin}: {key}: no such setting; known: {', '.join(sorted(known))}")
        changed[key] = _value(key, value, known[key], origin)
    return replace(usual, **changed)


def _value(key: str, value: Any, before: Any, origin: str) -> Any:
    if key == "maintenance":
        if not isinstance(value, list):
            raise InputError(f"{origin}: maintenance: write [[maintenance]] for each window")
        return tuple(_window(each, origin) for each in value)
    if key == "switch_labels":
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise InputError(f"{origin}: {key}: give a list of labels")
        return tuple(value)
    if key == "keep_node_out":
        if value not in ("off", "affinity", "cordon"):
            raise InputError(f"{origin}: {key}: is {value!r}; give off, affinity or cordon")
        return value
    if isinstance(before, bool) or isinstance(value, bool):
        if not (isinstance(before, bool) and isinstance(value, bool)):
            wanted = "true or false" if isinstance(before, bool) else "a number"
            raise InputError(f"{origin}: {key}: is {value!r}; give {wanted}")
        return value
    is_number = isinstance(value, int) or (isinstance(value, float) and isinstance(before, float))
    least = 1 if key in ("workers", "max_restarts_at_once", "common_cause_least") else 0
    if not is_number or not least <= value <= 1e9:
        raise InputError(f"{origin}: {key}: is {value!r}; give a number from {least} on")
    return type(before)(value)


def _window(body: Any, origin: str) -> MaintenanceWindow:
    known = {"days", "from", "to", "why"}
    if not isinstance(body, dict) or not known >= set(body):
        raise InputError(f'{origin}: maintenance: give days = ["sun"], from = "02:00", to, why')
    days = body.get("days", list(_DAYS))
    if not isinstance(days, list) or not days or any(each not in _DAYS for each in days):
        raise InputError(f"{origin}: maintenance.days: give some of {', '.join(_DAYS)}")
    begin, end = (_minutes(body.get(key), f"maintenance.{key}", origin) for key in ("from", "to"))
    return MaintenanceWindow(
        frozenset(map(_DAYS.index, days)), begin, end, str(body.get("why", ""))[:200]
    )


def _minutes(value: Any, name: str, origin: str) -> int:
    hours, _, minutes = str(value).partition(":")
    if hours.isdigit() and minutes.isdigit() and len(minutes) == 2:
        found = int(hours) * 60 + int(minutes)
        if found <= _MINUTES and int(minutes) < 60:
            return found
    raise InputError(f'{origin}: {name}: is {value!r}; give a time such as "02:00" (UTC)')
