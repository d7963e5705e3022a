# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Network cards for RDMA: their ports for the metrics, and what goes wrong with them as faults.

No sign of life is made of the bytes that pass: the cards of a node serve other pods and the
storage too, so traffic would speak against a true hang, and a job that fits one NVLink domain has
none. For the same reason no fault from here is fatal by itself: it is blamed when the job stops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mwatch.model.event import Fault
from mwatch.model.fabric import MAX_PORTS, FabricPort
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Ok, Reading
from mwatch.sources import rdma_sysfs
from mwatch.sources.periodic import Periodic
from mwatch.sources.rdma_rules import CARD_GONE, LINK_DOWN, RULES, Rule, Watch

PERIOD_SECONDS = 10.0
LIMIT_SECONDS = 20.0
"""A card whose firmware does not answer holds whoever reads its counters."""
_GONE_LOOKS = 3
_AGAIN_SECONDS = 120.0
_MOST_AGAIN_SECONDS = 3 * 3600.0
_FORGET_SECONDS = 24 * 3600.0
_MAX_DETAILS = 4
_FILE = "sysfs"


class _Look(NamedTuple):
    ports: tuple[FabricPort, ...]
    said: tuple[Observed, ...]


class _Told(NamedTuple):
    at: float
    pause: float


class Rdma:
    def __init__(
        self,
        root: str,
        stream: str,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        node: str | None = None,
        period_seconds: float = PERIOD_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`root` is `/sys`."""
        self._root = root
        self._stream = stream
        self._catalogue = catalogue
        self._node = node
        self._clock = clock
        self._wall = wall
        self._watches: dict[tuple[str, Rule], Watch] = {}
        self._was_up: dict[str, bool] = {}
        self._cards: dict[str, int] = {}
        """How many looks in a row did not find one that was there."""
        self._told: dict[tuple[str, str], _Told] = {}
        self._looks: Periodic[_Look] = Periodic(
            "mwatch-rdma",
            self._look,
            period=lambda: period_seconds,
            limit_seconds=limit_seconds,
            clock=clock,
        )

    @property
    def ports(self) -> tuple[FabricPort, ...]:
        """As last read; empty while they cannot be."""
        last = self._looks.last
        return last.value.ports if isinstance(last, Ok) else ()

    def read(self) -> Reading[tuple[Observed, ...]]:
        """Never waits: tells what the last look found, once, and begins the next when it is due."""
        return self._said(self._looks.news())

    def read_now(self, seconds: float) -> Reading[tuple[Observed, ...]]:
        """A fresh look; waits for it, for at most so long."""
        return self._said(self._looks.news_now(seconds))

    def _said(self, news: Reading[_Look] | None) -> Reading[tuple[Observed, ...]]:
        last = self._looks.last
        if not isinstance(last, Ok):
            return last
        return Ok(() if news is None else last.value.said)

    def _look(self) -> Reading[_Look]:
        at, wall = self._clock(), self._wall()
        try:
            cards = rdma_sysfs.cards(self._root)
        except FileNotFoundError:
            cards = []
        trouble = [*self._gone(cards)]
        if not self._cards:
            return Absent("there is no card for RDMA")
        found = [port for card in cards for port in rdma_sysfs.ports(self._root, card)][:MAX_PORTS]
        for port in found:
            trouble += self._of_port(at, port)
        self._forget({port.seen.device for port in found})
        faults = self._faults(at, trouble)
        said = tuple(Observed(wall, self._stream, fault) for fault in faults)
        return Ok(_Look(tuple(port.seen for port in found), said))

    def _gone(self, cards: list[str]) -> list[tuple[str, str, str]]:
        """One that is away for a moment is being reset."""
        self._cards = {**dict.fromkeys(cards, 0), **{
            card: looks + 1 for card, looks in self._cards.items() if card not in cards
        }}  # fmt: skip
        lost = [card for card, looks in self._cards.items() if looks == _GONE_LOOKS]
        self._cards = {card: n for card, n in self._cards.items() if n <= _GONE_LOOKS}
        return [(CARD_GONE, card, f"{card} is gone") for card in lost]

    def _of_port(self, at: float, port: rdma_sysfs.Port) -> list[tuple[str, str, str]]:
        name, errors = port.seen.device, port.seen.errors
        found: list[tuple[str, str, str]] = []
        if port.seen.is_up is not None:
            if self._was_up.get(name) and not port.seen.is_up:
                found.append((LINK_DOWN, name, f"{name} {port.state}"))
            self._was_up[name] = port.seen.is_up
        for rule in RULES:
            value = errors.get(rule.counter)
            if value is None:
                self._watches.pop((name, rule), None)
                continue
            more = self._watches.setdefault((name, rule), Watch(rule)).more(at, value)
            if more is not None:
                found.append((rule.fault, name, f"{name} {rule.counter} +{more}"))
        return found

    def _forget(self, names: set[str]) -> None:
        self._watches = {key: each for key, each in self._watches.items() if key[0] in names}
        self._was_up = {name: up for name, up in self._was_up.items() if name in names}

    def _forget_told(self, at: float) -> None:
        self._told = {
            key: told for key, told in self._told.items() if at - told.at < _FORGET_SECONDS
        }

    def _faults(self, at: float, trouble: list[tuple[str, str, str]]) -> list[Fault]:
        """One of each kind, with some of the ports; what goes on is told ever more rarely."""
        self._forget_told(at)
        news: dict[str, list[str]] = {}
        for id, device, words in trouble:
            if self._is_news(at, id, device):
                news.setdefault(id, []).append(words)
        return [self._fault(id, words) for id, words in news.items()]

    def _is_news(self, at: float, id: str, device: str) -> bool:
        told = self._told.get((id, device))
        if told is not None and at - told.at < told.pause:
            return False
        pause = _AGAIN_SECONDS if told is None else min(2 * told.pause, _MOST_AGAIN_SECONDS)
        self._told[id, device] = _Told(at, pause)
        return True

    def _fault(self, id: str, words: list[str]) -> Fault:
        entry = self._catalogue.get(id)
        role = Role.CONFIRMATION if entry is None else entry.role
        rest = len(words) - _MAX_DETAILS
        text = f"sysfs: {'; '.join(words[:_MAX_DETAILS])}" + (f"; {rest} more" if rest > 0 else "")
        return Fault(id, self._node, None, text, role.value, None, None, _FILE, 0)
