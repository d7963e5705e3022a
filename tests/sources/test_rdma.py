# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""RDMA cards: what is read of them, what is a fault, and what is healthy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.model.event import Fault
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.model.snapshot.pod import FabricPort
from mwatch.sources.rdma import Rdma
from support.builders.job import entries
from support.builders.volume import ManualClock
from support.fakes.rdma_tree import RdmaTree

WAIT = 60.0
CARD = "mlx5_0"


class Bench:
    def __init__(self, root: Path) -> None:
        self.tree = RdmaTree(root)
        self.clock = ManualClock()
        wall = self.clock.wall
        self.source = Rdma(
            str(root), "pod-0", entries(), node="node-3", clock=self.clock, wall=wall
        )

    def look(self, after: float = 10.0) -> list[Fault]:
        self.clock.now += after
        reading = self.source.read_now(WAIT)
        assert isinstance(reading, Ok), reading
        assert {seen.at for seen in reading.value} <= {self.clock.wall()}
        return [seen.what for seen in reading.value if isinstance(seen.what, Fault)]

    def ids(self, after: float = 10.0) -> list[str]:
        return [fault.id for fault in self.look(after)]

    @property
    def port(self) -> FabricPort:
        (port,) = self.source.ports
        return port


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_machine_without_cards_is_absent(bench: Bench, tmp_path: Path) -> None:
    assert isinstance(bench.source.read_now(WAIT), Absent)
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    assert isinstance(bench.source.read_now(WAIT), Absent)
    assert bench.source.ports == ()


def test_a_port_of_infiniband_is_read(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    assert bench.look() == []
    port = bench.port
    assert (port.device, port.is_up) == ("mlx5_0/1", True)
    assert (port.received_bytes, port.sent_bytes) == (8000, 4000)
    assert port.errors["port_xmit_wait"] == 77
    assert port.errors["np_cnp_sent"] == 100
    assert len(port.errors) <= 24
    assert "lifespan" not in port.errors


def test_efa_is_up_by_its_interface_and_counts_plain_bytes(bench: Bench) -> None:
    bench.tree.efa("rdmap16s27")
    bench.look()
    assert (bench.port.is_up, bench.port.received_bytes, bench.port.sent_bytes) == (True, 222, 111)
    assert bench.port.errors["no_completion_cmds"] == 0
    (bench.tree.card("rdmap16s27") / "device/net/ens5/operstate").write_text("down\n")
    (fault,) = bench.look()
    assert fault.id == "nic-link-down"
    assert fault.text == "sysfs: rdmap16s27/1 operstate down"


def test_efa_without_an_interface_is_neither_up_nor_down(bench: Bench) -> None:
    bench.tree.efa("efa_0", net=None)
    bench.look()
    assert bench.port.is_up is None


def test_what_the_counters_stood_at_before_is_no_fault(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.tree.set(CARD, "counters/link_downed", 200)
    bench.tree.set(CARD, "counters/symbol_error", 65535)
    assert bench.ids() == []
    assert bench.ids() == []


def test_a_fault_has_the_device_the_node_and_no_line(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    bench.tree.add(CARD, "counters/link_downed", 2)
    (fault,) = bench.look()
    assert fault.text == "sysfs: mlx5_0/1 link_downed +2"
    assert (fault.node, fault.line, fault.rank, fault.gpu) == ("node-3", 0, None, None)
    assert fault.role == "root"


@pytest.mark.parametrize(
    ("path", "fault", "more"),
    [
        ("counters/link_downed", "nic-link-down", 1),
        ("counters/local_link_integrity_errors", "rdma-link-errors", 1),
        ("counters/excessive_buffer_overrun_errors", "rdma-link-errors", 1),
        ("counters/symbol_error", "rdma-link-errors", 101),
        ("counters/port_rcv_errors", "rdma-link-errors", 101),
        ("counters/link_error_recovery", "rdma-link-flaps", 6),
        ("counters/port_xmit_discards", "rdma-congestion", 1001),
        ("hw_counters/roce_slow_restart", "rdma-congestion", 101),
        ("hw_counters/rnr_nak_retry_err", "rdma-peer-lost", 1),
        ("hw_counters/local_ack_timeout_err", "rdma-peer-lost", 11),
        ("hw_counters/req_transport_retries_exceeded", "rdma-peer-lost", 1),
    ],
)
def test_more_than_the_threshold_is_a_fault_and_as_much_is_none(
    bench: Bench, path: str, fault: str, more: int
) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    bench.tree.add(CARD, path, more - 1)
    assert bench.ids() == []
    bench.clock.now += 7200.0
    bench.look()
    bench.tree.add(CARD, path, more)
    assert bench.ids() == [fault]


@pytest.mark.parametrize(
    ("path", "fault", "more"),
    [
        ("hw_counters/rx_drops", "efa-packet-loss", 1001),
        ("hw_counters/retrans_bytes", "efa-packet-loss", 1_000_001),
        ("hw_counters/retrans_pkts", "efa-packet-loss", 1001),
        ("hw_counters/retrans_timeout_events", "efa-packet-loss", 101),
        ("hw_counters/unresponsive_remote_events", "efa-peer-silent", 11),
        ("hw_counters/rdma_read_wr_err", "efa-peer-silent", 11),
        ("../../hw_counters/no_completion_cmds", "efa-firmware-silent", 1),
        ("../../hw_counters/cmds_err", "efa-commands-fail", 11),
        ("../../device/net/ens5/carrier_changes", "rdma-link-flaps", 3),
    ],
)
def test_efa_has_thresholds_of_its_own(bench: Bench, path: str, fault: str, more: int) -> None:
    bench.tree.efa("efa_0")
    bench.look()
    bench.tree.add("efa_0", path, more - 1)
    assert bench.ids() == []
    bench.clock.now += 7200.0
    bench.look()
    bench.tree.add("efa_0", path, more)
    assert bench.ids() == [fault]


def test_a_few_symbol_errors_an_hour_are_healthy_and_many_are_not(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    for _ in range(60):  # two hours at 100 an hour
        bench.tree.add(CARD, "counters/symbol_error", 3)
        assert bench.ids(after=108.0) == []
    found: list[str] = []
    for _ in range(60):  # one hour at 180
        bench.tree.add(CARD, "counters/symbol_error", 3)
        found += bench.ids(after=60.0)
    assert set(found) == {"rdma-link-errors"}


def test_a_look_that_came_late_allows_for_more(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    bench.tree.add(CARD, "counters/port_xmit_discards", 5000)
    assert bench.ids(after=60.0) == []


@pytest.mark.parametrize("value", [0, 1, 11])
def test_a_counter_that_was_reset_or_wrapped_begins_anew(bench: Bench, value: int) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    bench.tree.set(CARD, "counters/port_rcv_errors", value)
    assert bench.ids() == []
    bench.tree.add(CARD, "counters/port_rcv_errors", 5000)
    assert bench.ids() == ["rdma-link-errors"]


@pytest.mark.parametrize("text", ["", "N/A (no PMA)", "-1", "0x10", "9 9"])
def test_a_counter_that_cannot_be_read_is_left_out_and_never_zero(bench: Bench, text: str) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    bench.tree.set(CARD, "counters/link_downed", text)
    assert bench.ids() == []
    assert "link_downed" not in bench.port.errors
    bench.tree.set(CARD, "counters/link_downed", 9)
    assert bench.ids() == [], "what happened in between is not known"


def test_counters_that_vanish_are_left_out(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    for name in os.listdir(bench.tree.card(CARD) / "ports/1/counters"):
        (bench.tree.card(CARD) / "ports/1/counters" / name).unlink()
    assert bench.ids() == []
    assert bench.port.received_bytes is None
    assert bench.port.sent_bytes is None


def test_a_port_that_goes_down_is_a_fault_and_one_that_always_was_is_none(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.tree.mellanox("mlx5_1")
    bench.tree.set("mlx5_1", "state", "1: DOWN")
    assert bench.ids() == []
    bench.tree.set(CARD, "state", "1: DOWN")
    bench.tree.set(CARD, "phys_state", "2: Polling")
    (fault,) = bench.look()
    assert fault.text == "sysfs: mlx5_0/1 state 1: DOWN, phys_state 2: Polling"
    assert [port.is_up for port in bench.source.ports] == [False, False]
    assert bench.ids() == []


def test_a_card_that_is_away_for_a_moment_is_not_gone(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.tree.mellanox("mlx5_1")
    bench.look()
    bench.tree.remove(CARD)
    assert bench.ids() == []
    assert bench.ids() == []
    bench.tree.mellanox(CARD)
    assert bench.ids() == []
    bench.tree.remove(CARD)
    assert [bench.ids() for _ in range(4)] == [[], [], ["rdma-card-gone"], []]
    assert [port.device for port in bench.source.ports] == ["mlx5_1/1"]


def test_the_last_card_that_vanishes_is_reported_before_there_is_nothing(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    bench.tree.remove(CARD)
    assert [bench.ids() for _ in range(3)] == [[], [], ["rdma-card-gone"]]
    assert isinstance(bench.source.read_now(WAIT), Absent)


def test_many_ports_with_the_same_trouble_are_one_fault(bench: Bench) -> None:
    for number in range(8):
        bench.tree.mellanox(f"mlx5_{number}")
    bench.look()
    for number in range(8):
        bench.tree.add(f"mlx5_{number}", "counters/link_downed", 1)
    (fault,) = bench.look()
    assert fault.text.count("link_downed") == 4
    assert fault.text.endswith("; 4 more")


def test_trouble_that_goes_on_is_reported_ever_more_rarely(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    told = 0
    for _ in range(288):  # a day
        bench.tree.add(CARD, "counters/port_rcv_errors", 30_000)
        told += len(bench.ids(after=300.0))
    assert 8 <= told <= 16


def test_more_ports_than_we_care_for_are_left_out(bench: Bench) -> None:
    for number in range(66):
        bench.tree.mellanox(f"mlx5_{number}")
    bench.look()
    assert len(bench.source.ports) == 64


def test_a_read_gives_a_look_once(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    bench.look()
    assert bench.source.read() == Ok(())


def test_a_folder_that_may_not_be_listed_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "infiniband").write_text("no folder")
    assert isinstance(Bench(tmp_path).source.read_now(WAIT), Failed)


def test_a_port_that_shows_no_state_is_neither_up_nor_down(bench: Bench) -> None:
    bench.tree.mellanox(CARD)
    (bench.tree.card(CARD) / "ports/1/state").unlink()
    bench.look()
    assert bench.port.is_up is None


def test_roce_has_counters_of_its_interface(bench: Bench) -> None:
    bench.tree.mellanox(CARD, layer="Ethernet", net="eth2")
    bench.look()
    assert bench.port.is_up is True
    assert bench.port.errors["carrier_changes"] == 2
