# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/sys/class/infiniband` as the kernel lays it out, written into a folder of a test."""

from __future__ import annotations

import shutil
from pathlib import Path

PORT = {
    "symbol_error": 3, "link_error_recovery": 0, "link_downed": 1, "port_rcv_errors": 12,
    "port_rcv_remote_physical_errors": 0, "port_rcv_switch_relay_errors": 0,
    "port_xmit_discards": 40, "port_xmit_constraint_errors": 0, "port_rcv_constraint_errors": 0,
    "local_link_integrity_errors": 0, "excessive_buffer_overrun_errors": 0, "VL15_dropped": 0,
    "port_xmit_data": 1000, "port_rcv_data": 2000, "port_xmit_packets": 9, "port_rcv_packets": 9,
    "port_xmit_wait": 77, "multicast_rcv_packets": 0,
}  # fmt: skip
MLX5 = {
    "rnr_nak_retry_err": 0, "local_ack_timeout_err": 5, "packet_seq_err": 2, "out_of_sequence": 8,
    "implied_nak_seq_err": 0, "req_transport_retries_exceeded": 0, "req_cqe_error": 1,
    "resp_cqe_error": 0, "roce_slow_restart": 0, "np_cnp_sent": 100, "rp_cnp_handled": 50,
    "np_ecn_marked_roce_packets": 100, "duplicate_request": 0, "lifespan": 10,
}  # fmt: skip
EFA = {
    "tx_bytes": 111, "rx_bytes": 222, "tx_pkts": 1, "rx_pkts": 2, "rx_drops": 7, "send_bytes": 1,
    "recv_bytes": 1, "rdma_read_wr_err": 0, "rdma_write_wr_err": 0, "retrans_bytes": 0,
    "retrans_pkts": 0, "retrans_timeout_events": 0, "unresponsive_remote_events": 0,
    "impaired_remote_conn_events": 0, "lifespan": 12,
}  # fmt: skip
EFA_CARD = {
    "submitted_cmds": 88, "completed_cmds": 88, "cmds_err": 0, "no_completion_cmds": 0,
    "reg_mr_err": 0, "create_qp_err": 0, "create_ah_err": 0, "lifespan": 12,
}  # fmt: skip


class RdmaTree:
    def __init__(self, root: Path) -> None:
        self.root = root

    def mellanox(self, card: str, *, layer: str = "InfiniBand", net: str | None = None) -> None:
        port = self._port(card, "4: ACTIVE", "5: LinkUp", layer, "400 Gb/sec (4X NDR)")
        _write(port / "counters", PORT)
        _write(port / "hw_counters", MLX5)
        if net is not None:
            self._net(card, net)

    def efa(self, card: str, *, net: str | None = "ens5") -> None:
        port = self._port(card, "4: ACTIVE", "5: LinkUp", "Unknown", "100 Gb/sec (4X EDR)")
        _write(port / "hw_counters", EFA)
        _write(self.card(card) / "hw_counters", EFA_CARD)
        if net is not None:
            self._net(card, net)

    def card(self, card: str) -> Path:
        return self.root / "class" / "infiniband" / card

    def set(self, card: str, path: str, value: object) -> None:
        """`path` is from the port's folder, or from the card's where it begins with `../..`."""
        (self.card(card) / "ports" / "1" / path).write_text(f"{value}\n")

    def add(self, card: str, path: str, more: int) -> None:
        file = self.card(card) / "ports" / "1" / path
        file.write_text(f"{int(file.read_text()) + more}\n")

    def remove(self, card: str) -> None:
        shutil.rmtree(self.card(card))

    def _port(self, card: str, state: str, physical: str, layer: str, rate: str) -> Path:
        port = self.card(card) / "ports" / "1"
        port.mkdir(parents=True)
        for name, value in (
            ("state", state), ("phys_state", physical), ("link_layer", layer), ("rate", rate),
            ("lid", "0x1"), ("sm_lid", "0x1"),
        ):  # fmt: skip
            (port / name).write_text(f"{value}\n")
        return port

    def _net(self, card: str, net: str) -> None:
        folder = self.card(card) / "device" / "net" / net
        folder.mkdir(parents=True)
        for name, value in (("operstate", "up"), ("carrier", "1"), ("carrier_changes", "2")):
            (folder / name).write_text(f"{value}\n")


def _write(folder: Path, counters: dict[str, int]) -> None:
    folder.mkdir()
    for name, value in counters.items():
        (folder / name).write_text(f"{value}\n")
