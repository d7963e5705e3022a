# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of the network are critical only if the job has stopped too."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.fabric_fault import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import FaultSeen, Job
from mwatch.model.phase import JobPhase
from support.builders.job import START, error, fault, found, job, steps

LAST = START + 130.0


def struck(*faults: FaultSeen, silent: float = 0.0, **attempt: Any) -> Job:
    built = job(steps([2.0] * 30), faults=list(faults), **attempt)
    built.now += silent
    return built


def verdict(*faults: FaultSeen, **attempt: Any) -> Finding:
    (finding,) = found(DETECTOR, struck(*faults, **attempt))
    return finding


ROOTS = ["ib-retry-exceeded", "ib-port-error", "efa-unresponsive-remote", "nic-link-down"]


@pytest.mark.parametrize("id", ROOTS)
def test_a_network_error_that_stopped_the_job_is_critical(id: str) -> None:
    finding = verdict(fault(id, at=LAST + 1, rank=3, stream="pod-3"), silent=60.0)
    assert finding.cause is Cause.FABRIC
    assert finding.severity is Severity.CRITICAL
    assert finding.fault == id
    assert finding.fingerprint == f"fabric/{id}"
    assert finding.since_time == LAST + 1
    assert finding.since_iteration == 31
    assert finding.culprit is not None
    assert (finding.culprit.rank, finding.culprit.pod) == (3, "pod-3")
    assert not finding.cannot_heal


def test_an_attempt_that_ended_after_it_is_critical_too() -> None:
    finding = verdict(fault("ib-retry-exceeded", at=LAST), phase=JobPhase.ENDED, ended_at=LAST + 2)
    assert finding.severity is Severity.CRITICAL


def test_before_it_is_known_whether_the_job_stops_it_is_a_warning() -> None:
    assert verdict(fault("ib-port-error", at=LAST), silent=2.0).severity is Severity.WARNING


def test_a_flap_that_the_job_outlived_is_a_note() -> None:
    ranks = [fault("ib-port-error", at=START + 110 + i / 10, rank=i) for i in range(8)]
    finding = verdict(*ranks)
    assert finding.severity is Severity.INFO
    assert "went on" in finding.summary


def test_a_link_that_flaps_again_and_again_is_a_warning() -> None:
    flaps = [fault("nic-link-down", at=START + at) for at in (105, 118)]
    assert verdict(*flaps).severity is Severity.WARNING


def test_a_flap_long_ago_does_not_hide_the_one_that_stopped_the_job() -> None:
    finding = verdict(
        fault("nic-link-down", at=START + 105), fault("nic-link-down", at=LAST + 1), silent=60.0
    )
    assert finding.severity is Severity.CRITICAL
    assert finding.since_time == LAST + 1


@pytest.mark.parametrize("id", ["ib-flushed", "ib-receiver-not-ready", "nccl-unhandled-system"])
def test_consequences_are_quiet(id: str) -> None:
    assert found(DETECTOR, struck(fault(id, at=LAST), silent=60.0)) == []


def test_a_path_that_is_gone_because_the_peer_died_is_not_the_fabrics() -> None:
    cut = fault("ib-retry-exceeded", at=LAST + 3)
    assert verdict(fault("xid-79", at=LAST), cut, silent=60.0).severity is Severity.WARNING
    crashed = struck(cut, silent=60.0, errors=[error(error="ValueError", at=LAST)])
    assert found(DETECTOR, crashed)[0].severity is Severity.WARNING


def test_a_fatal_nvlink_event_cannot_heal_and_a_nonfatal_one_is_quiet() -> None:
    text = "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT {} XC0 i0 Link 08 (0x004505c6)"
    fatal = verdict(fault("xid-149", at=LAST, node="node-7", text=text.format("Fatal")))
    assert fatal.severity is Severity.CRITICAL
    assert fatal.cannot_heal
    assert fatal.culprit is not None
    assert (fatal.culprit.xid, fatal.culprit.node) == (149, "node-7")
    mild = fault("xid-149", at=LAST, text=text.format("Nonfatal"))
    assert found(DETECTOR, struck(mild)) == []


def test_no_fault_and_no_data_give_no_verdict() -> None:
    assert found(DETECTOR, struck()) == []
    built = struck(fault("ib-port-error", at=LAST), silent=60.0)
    built.sources = {}
    assert found(DETECTOR, built) == []
