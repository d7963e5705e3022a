# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How much of a counter is trouble: the thresholds, and the memory that they need.

A few symbol errors are healthy, as is a lost packet: most counters mean something only as a
rate. A counter that has gone down was reset (or wrapped, which looks the same) and begins anew.
Those that have no line here are shown, and judged by nobody: their level is the fabric's own.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

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


class Rule(NamedTuple):
    counter: str
    more_than: int
    seconds: float
    """0: since the last look."""
    fault: str
    is_bucket: bool = False
    """`more_than` may come at once, and from then on one each second."""


RULES = (
    Rule("link_downed", 0, 0.0, LINK_DOWN),
    Rule("local_link_integrity_errors", 0, 0.0, _LINK),
    Rule("excessive_buffer_overrun_errors", 0, 0.0, _LINK),
    Rule("symbol_error", 100, 10.0, _LINK),
    Rule("symbol_error", 120, 3600.0, _LINK),  # the bit error rate that IBTA allows
    Rule("port_rcv_errors", 100, 10.0, _LINK),
    Rule("link_error_recovery", 5, 60.0, _FLAPS),
    Rule("carrier_changes", 2, 300.0, _FLAPS),
    Rule("port_xmit_discards", 1000, 10.0, _CONGESTED),
    Rule("roce_slow_restart", 100, 10.0, _CONGESTED),
    Rule("rnr_nak_retry_err", 0, 0.0, _PEER),
    Rule("local_ack_timeout_err", 10, 10.0, _PEER),
    Rule("req_transport_retries_exceeded", 0, 0.0, _PEER),
    Rule("req_cqe_error", 0, 0.0, _PEER),
    Rule("resp_cqe_error", 0, 0.0, _PEER),
    Rule("rx_drops", 1000, 10.0, _EFA_LOSS),
    Rule("retrans_bytes", 1_000_000, 0.0, _EFA_LOSS, is_bucket=True),
    Rule("retrans_pkts", 1000, 0.0, _EFA_LOSS, is_bucket=True),
    Rule("retrans_timeout_events", 100, 0.0, _EFA_LOSS, is_bucket=True),
    Rule("unresponsive_remote_events", 10, 10.0, _EFA_PEER),
    Rule("impaired_remote_conn_events", 10, 10.0, _EFA_PEER),
    Rule("rdma_read_wr_err", 10, 10.0, _EFA_PEER),
    Rule("rdma_write_wr_err", 10, 10.0, _EFA_PEER),
    Rule("no_completion_cmds", 0, 0.0, _EFA_FIRMWARE),
    Rule("cmds_err", 10, 60.0, _EFA_COMMANDS),
)
"""Rates by the second are taken over ten."""


class Watch:
    """One counter of one port, held against one rule."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._seen: deque[tuple[float, int]] = deque()
        self._tokens = float(rule.more_than)

    def more(self, at: float, value: int) -> int | None:
        """By how much it rose, where that is too much."""
        if self._seen and value < self._seen[-1][1]:
            self._seen.clear()
        found = self._over_bucket(at, value) if self._rule.is_bucket else self._over(at, value)
        self._keep(at, value)
        return found

    def _over(self, at: float, value: int) -> int | None:
        """Since the last moment before the rule's time began, and since the first one in it: over
        a longer time than the rule's, as after a look that came late, more is allowed."""
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
        """As much of the past as the rule looks back on, in steps: memory is bounded."""
        if len(self._seen) >= 2 and at - self._seen[-2][0] < self._rule.seconds / _SAMPLES:
            self._seen.pop()
        self._seen.append((at, value))
