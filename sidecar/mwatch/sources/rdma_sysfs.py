# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The RDMA cards of a machine as the kernel shows them under `/sys/class/infiniband`.

Where the RDMA namespace is shared, as it mostly is, that is every card of the node, also those
that other pods use. A file that is not there, or cannot be read, is left out: never zero. EFA's
driver calls every port active, so its state is taken from the network interface of the card.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mwatch.model.fabric import MAX_ERRORS, MAX_PORTS, FabricPort

CLASS_FOLDER = "class/infiniband"
_MAX_FILE = 128
_WORD_BYTES = 4
"""`port_xmit_data` and `port_rcv_data` count words of four bytes."""
_HARDWARE = "hw_counters"
_CARRIER_CHANGES = "carrier_changes"
_LINK_LAYERS = frozenset({"InfiniBand", "Ethernet"})
"""EFA has another word, which differs between kernels."""

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
    seen: FabricPort
    state: str
    """In the kernel's words, for people."""


def cards(root: str) -> list[str]:
    """FileNotFoundError where there is no such class at all."""
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
    seen = FabricPort(
        device=name,
        is_up=is_up,
        received_bytes=_bytes(counters, "port_rcv_data", hardware, "rx_bytes"),
        sent_bytes=_bytes(counters, "port_xmit_data", hardware, "tx_bytes"),
        errors=dict(list(errors.items())[:MAX_ERRORS]),
    )
    return Port(seen, state)


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
    """Of a card with several nobody knows which belongs to the port."""
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
