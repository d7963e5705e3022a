# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""RDMA network cards: reads port state and counters from sysfs, and reports faults.

Cards and ports are listed under `/sys/class/infiniband`. If the RDMA namespace is shared, as it
usually is, that includes cards that other pods use. So traffic does not count as progress, and no
fault reported here is fatal by itself: it becomes a cause only when the job stops. A value that
cannot be read is left out, never zero.

Most counters are meaningful only as a rate: a few symbol errors and lost packets are normal. A
counter that decreased was reset (or wrapped, which looks the same). Counters without a rule are
exported but not assessed.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from mwatch.model.event import Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Ok, Reading
from mwatch.model.snapshot.pod import MAX_ERRORS, MAX_PORTS, FabricPort
from mwatch.sources.background import BackgroundSource, Observations

CLASS_FOLDER = "class/infiniband"
_MAX_FILE = 128
_WORD_BYTES = 4
"""`port_xmit_data` and `port_rcv_data` count words of four bytes."""
_HARDWARE = "hw_counters"
_CARRIER_CHANGES = "carrier_changes"
_LINK_LAYERS = frozenset({"InfiniBand", "Ethernet"})
"""EFA reports another one, which differs between kernels, and reports every port as active: its
state is taken from the network interface."""

_PORT = (
    "link_downed", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
    "symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards",
    "port_xmit_wait",
)  # fmt: skip
_PORT_HARDWARE = (
    "rnr_nak_retry_err", "local_ack_timeout_err", "packet_seq_err", "out_of_sequence",
    "implied_nak_seq_err", "req_transport_retries_exceeded", "req_cqe_error", "resp_cqe_error",
    "roce_slow_restart", "np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets",
    # EFA
    "rx_drops", "rdma_read_wr_err", "rdma_write_wr_err", "retrans_bytes", "retrans_pkts",
    "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events",
)  # fmt: skip
_DEVICE_HARDWARE = (
    "no_completion_cmds", "cmds_err", "reg_mr_err", "create_qp_err", "create_ah_err",
)  # fmt: skip


class Port(NamedTuple):
    values: FabricPort
    state: str


def read_cards(root: str) -> list[str]:
    """List the cards; raise FileNotFoundError if the kernel has no RDMA support."""
    return sorted(os.listdir(os.path.join(root, CLASS_FOLDER)))[:MAX_PORTS]


def ports(root: str, card: str) -> Iterator[Port]:
    folder = os.path.join(root, CLASS_FOLDER, card)
    interface = _interface(folder)
    of_card = _numbers(os.path.join(folder, _HARDWARE), _DEVICE_HARDWARE)
    changes = None if interface is None else _number(os.path.join(interface, _CARRIER_CHANGES))
    if changes is not None:
        of_card[_CARRIER_CHANGES] = changes
    for number in _names(os.path.join(folder, "ports")):
        yield _port(f"{card}/{number}", os.path.join(folder, "ports", number), interface, of_card)


def _port(name: str, folder: str, interface: str | None, of_card: Mapping[str, int]) -> Port:
    counters, hardware = os.path.join(folder, "counters"), os.path.join(folder, _HARDWARE)
    errors = {**_numbers(counters, _PORT), **_numbers(hardware, _PORT_HARDWARE), **of_card}
    is_up, state = _state(folder, interface)
    values = FabricPort(
        device=name,
        is_up=is_up,
        received_bytes=_bytes(counters, "port_rcv_data", hardware, "rx_bytes"),
        sent_bytes=_bytes(counters, "port_xmit_data", hardware, "tx_bytes"),
        errors=dict(list(errors.items())[:MAX_ERRORS]),
    )
    return Port(values, state)


def _state(folder: str, interface: str | None) -> tuple[bool | None, str]:
    if _text(os.path.join(folder, "link_layer")) not in _LINK_LAYERS:
        operstate = None if interface is None else _text(os.path.join(interface, "operstate"))
        if operstate not in ("up", "down"):
            return None, "unknown"
        return operstate == "up", f"operstate {operstate}"
    state, physical = (_text(os.path.join(folder, name)) for name in ("state", "phys_state"))
    if state is None:
        return None, "unknown"
    is_up = state.endswith("ACTIVE") and (physical is None or physical.endswith("LinkUp"))
    return is_up, f"state {state}, phys_state {physical}"


def _interface(folder: str) -> str | None:
    """Return the network interface of a card; None if it does not have exactly one."""
    inside = os.path.join(folder, "device", "net")
    found = _names(inside)
    return os.path.join(inside, found[0]) if len(found) == 1 else None


def _bytes(counters: str, words: str, hardware: str, plain: str) -> int | None:
    found = _number(os.path.join(counters, words))
    return _number(os.path.join(hardware, plain)) if found is None else found * _WORD_BYTES


def _numbers(folder: str, names: tuple[str, ...]) -> dict[str, int]:
    there = set(_names(folder))
    read = ((name, _number(os.path.join(folder, name))) for name in names if name in there)
    return {name: value for name, value in read if value is not None}


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _number(path: str) -> int | None:
    found = _text(path)
    return int(found) if found is not None and found.isdecimal() else None


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE).decode("ascii", "replace").strip()
    except OSError:
        return None


LINK_DOWN = "nic-link-down"
CARD_GONE = "rdma-card-gone"
_LINK = "rdma-link-errors"
_FLAPS = "rdma-link-flaps"
_CONGESTED = "rdma-congestion"
_PEER = "rdma-peer-lost"
_EFA_LOSS = "efa-packet-loss"
_EFA_PEER = "efa-peer-silent"
_EFA_FIRMWARE = "efa-firmware-silent"
_EFA_COMMANDS = "efa-commands-fail"
_SAMPLES = 60


class CounterRule(NamedTuple):
    counter: str
    more_than: int
    seconds: float
    """The window of the rule; 0: since the last poll."""
    fault: str
    is_bucket: bool = False
    """A token bucket: allows `more_than` at once, and refills by one per second."""


RULES = (
    CounterRule("link_downed", 0, 0.0, LINK_DOWN),
    CounterRule("local_link_integrity_errors", 0, 0.0, _LINK),
    CounterRule("excessive_buffer_overrun_errors", 0, 0.0, _LINK),
    CounterRule("symbol_error", 100, 10.0, _LINK),
    CounterRule("symbol_error", 120, 3600.0, _LINK),  # the bit error rate that IBTA allows
    CounterRule("port_rcv_errors", 100, 10.0, _LINK),
    CounterRule("link_error_recovery", 5, 60.0, _FLAPS),
    CounterRule("carrier_changes", 2, 300.0, _FLAPS),
    CounterRule("port_xmit_discards", 1000, 10.0, _CONGESTED),
    CounterRule("roce_slow_restart", 100, 10.0, _CONGESTED),
    CounterRule("rnr_nak_retry_err", 0, 0.0, _PEER),
    CounterRule("local_ack_timeout_err", 10, 10.0, _PEER),
    CounterRule("req_transport_retries_exceeded", 0, 0.0, _PEER),
    CounterRule("req_cqe_error", 0, 0.0, _PEER),
    CounterRule("resp_cqe_error", 0, 0.0, _PEER),
    CounterRule("rx_drops", 1000, 10.0, _EFA_LOSS),
    CounterRule("retrans_bytes", 1_000_000, 0.0, _EFA_LOSS, is_bucket=True),
    CounterRule("retrans_pkts", 1000, 0.0, _EFA_LOSS, is_bucket=True),
    CounterRule("retrans_timeout_events", 100, 0.0, _EFA_LOSS, is_bucket=True),
    CounterRule("unresponsive_remote_events", 10, 10.0, _EFA_PEER),
    CounterRule("impaired_remote_conn_events", 10, 10.0, _EFA_PEER),
    CounterRule("rdma_read_wr_err", 10, 10.0, _EFA_PEER),
    CounterRule("rdma_write_wr_err", 10, 10.0, _EFA_PEER),
    CounterRule("no_completion_cmds", 0, 0.0, _EFA_FIRMWARE),
    CounterRule("cmds_err", 10, 60.0, _EFA_COMMANDS),
)


class CounterWatch:
    def __init__(self, rule: CounterRule) -> None:
        self._rule = rule
        self._seen: deque[tuple[float, int]] = deque()
        self._tokens = float(rule.more_than)

    def excess(self, at: float, value: int) -> int | None:
        """Return the increase if it breaks the rule."""
        if self._seen and value < self._seen[-1][1]:
            self._seen.clear()
        found = self._over_bucket(at, value) if self._rule.is_bucket else self._over(at, value)
        self._keep(at, value)
        return found

    def _over(self, at: float, value: int) -> int | None:
        """Compare with the last sample before the rule's window and the first one in it. If they
        are further apart than the window, as after a late poll, more is allowed."""
        rule = self._rule
        while len(self._seen) >= 2 and self._seen[1][0] <= at - rule.seconds:
            self._seen.popleft()
        for since, before in islice(self._seen, 2):
            share = max(1.0, (at - since) / rule.seconds) if rule.seconds else 1.0
            if value - before > rule.more_than * share:
                return value - before
        return None

    def _over_bucket(self, at: float, value: int) -> int | None:
        if not self._seen:
            return None
        since, before = self._seen.popleft()
        rise = value - before
        self._tokens = min(self._tokens + at - since, float(self._rule.more_than))
        if rise > self._tokens:
            return rise
        self._tokens -= rise
        return None

    def _keep(self, at: float, value: int) -> None:
        """Keep as much history as the rule needs, thinned out to a bounded number of samples."""
        if len(self._seen) >= 2 and at - self._seen[-2][0] < self._rule.seconds / _SAMPLES:
            self._seen.pop()
        self._seen.append((at, value))


PERIOD_SECONDS = 10.0
LIMIT_SECONDS = 20.0
"""Reading the counters blocks while the firmware of a card does not answer."""
_GONE_POLLS = 3
_AGAIN_SECONDS = 120.0
_MOST_AGAIN_SECONDS = 3 * 3600.0
_FORGET_SECONDS = 24 * 3600.0
_MAX_DETAILS = 4
_FILE = "sysfs"


class _Reported(NamedTuple):
    at: float
    pause: float


class _Trouble(NamedTuple):
    fault: str
    device: str
    text: str


class Rdma(BackgroundSource):
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
        super().__init__(
            "mwatch-rdma",
            self._poll,
            period=lambda: period_seconds,
            limit_seconds=limit_seconds,
            clock=clock,
        )
        self._root = root
        self._stream = stream
        self._catalogue = catalogue
        self._node = node
        self._wall = wall
        self._ports: tuple[FabricPort, ...] = ()
        self._watches: dict[tuple[str, CounterRule], CounterWatch] = {}
        self._was_up: dict[str, bool] = {}
        self._cards: dict[str, int] = {}
        """By card: consecutive polls without it since it was last there."""
        self._reported: dict[tuple[str, str], _Reported] = {}

    @property
    def ports(self) -> tuple[FabricPort, ...]:
        return self._ports if self.is_up else ()

    def _poll(self) -> Reading[Observations]:
        at, wall = self._clock(), self._wall()
        try:
            cards = read_cards(self._root)
        except FileNotFoundError:
            cards = []
        trouble = self._gone(cards)
        if not self._cards:
            return Absent("there is no RDMA card")
        found = [port for card in cards for port in ports(self._root, card)][:MAX_PORTS]
        for port in found:
            trouble += self._check(at, port)
        self._forget(at, {port.values.device for port in found})
        self._ports = tuple(port.values for port in found)
        return Ok(tuple(Observed(wall, self._stream, each) for each in self._faults(at, trouble)))

    def _gone(self, cards: list[str]) -> list[_Trouble]:
        """Report lost cards; one that is absent for a moment is being reset."""
        self._cards = {**dict.fromkeys(cards, 0), **{
            card: polls + 1 for card, polls in self._cards.items() if card not in cards
        }}  # fmt: skip
        lost = [card for card, polls in self._cards.items() if polls == _GONE_POLLS]
        self._cards = {card: n for card, n in self._cards.items() if n <= _GONE_POLLS}
        return [_Trouble(CARD_GONE, card, f"{card} is gone") for card in lost]

    def _check(self, at: float, port: Port) -> list[_Trouble]:
        name, is_up = port.values.device, port.values.is_up
        found: list[_Trouble] = []
        if is_up is not None:
            if self._was_up.get(name) and not is_up:
                found.append(_Trouble(LINK_DOWN, name, f"{name} {port.state}"))
            self._was_up[name] = is_up
        for rule in RULES:
            value = port.values.errors.get(rule.counter)
            if value is None:
                self._watches.pop((name, rule), None)
                continue
            excess = self._watches.setdefault((name, rule), CounterWatch(rule)).excess(at, value)
            if excess is not None:
                found.append(_Trouble(rule.fault, name, f"{name} {rule.counter} +{excess}"))
        return found

    def _forget(self, at: float, names: set[str]) -> None:
        self._watches = {key: each for key, each in self._watches.items() if key[0] in names}
        self._was_up = {name: up for name, up in self._was_up.items() if name in names}
        self._reported = {
            key: last for key, last in self._reported.items() if at - last.at < _FORGET_SECONDS
        }

    def _faults(self, at: float, trouble: list[_Trouble]) -> list[Fault]:
        due: dict[str, list[str]] = {}
        for each in trouble:
            if self._is_due(at, each):
                due.setdefault(each.fault, []).append(each.text)
        return [self._fault(id, details) for id, details in due.items()]

    def _is_due(self, at: float, trouble: _Trouble) -> bool:
        key = trouble.fault, trouble.device
        last = self._reported.get(key)
        if last is not None and at - last.at < last.pause:
            return False
        pause = _AGAIN_SECONDS if last is None else min(2 * last.pause, _MOST_AGAIN_SECONDS)
        self._reported[key] = _Reported(at, pause)
        return True

    def _fault(self, id: str, details: list[str]) -> Fault:
        entry = self._catalogue.get(id)
        role = Role.CONFIRMATION if entry is None else entry.role
        rest = len(details) - _MAX_DETAILS
        text = "sysfs: " + "; ".join(details[:_MAX_DETAILS])
        text += f"; {rest} more" if rest > 0 else ""
        return Fault(id, self._node, None, text, role.value, None, None, _FILE, 0)
