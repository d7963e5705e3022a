# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Faults from RDMA counters: blamed if the job has stopped, never fatal by themselves, since the
card may belong to another pod of the node.
"""

from __future__ import annotations

import pytest

from mwatch.detect import fabric_fault, gpu_fault
from mwatch.model.cause import Cause
from mwatch.model.fault import Blame, Role
from mwatch.model.finding import Severity
from mwatch.model.job import Job
from mwatch.sources.rdma import CARD_GONE, LINK_DOWN, RULES
from support.builders.job import START, entries, fault, found, job, steps

LAST = START + 130.0
IDS = sorted({CARD_GONE, LINK_DOWN, *(rule.fault for rule in RULES)})
ROOTS = [id for id in IDS if entries()[id].role is Role.ROOT]


def struck(id: str, *, at: float, silent: float = 0.0) -> Job:
    built = job(steps([2.0] * 30), faults=[fault(id, at=at, text="sysfs: mlx5_0/1 x +1")])
    built.now += silent
    return built


@pytest.mark.parametrize("id", IDS)
def test_every_fault_of_the_counters_is_in_the_catalogue_and_blames_the_fabric(id: str) -> None:
    assert entries()[id].blame is Blame.FABRIC


@pytest.mark.parametrize("id", IDS)
def test_none_is_critical_while_the_job_may_go_on(id: str) -> None:
    built = struck(id, at=LAST, silent=2.0)
    findings = [*found(fabric_fault.DETECTOR, built), *found(gpu_fault.DETECTOR, built)]
    assert all(each.severity is not Severity.CRITICAL for each in findings)
    assert not any(each.cannot_heal for each in findings)


@pytest.mark.parametrize("id", IDS)
def test_what_the_job_outlived_is_a_note_at_most(id: str) -> None:
    built = struck(id, at=START + 105)
    assert {each.severity for each in found(fabric_fault.DETECTOR, built)} <= {Severity.INFO}


@pytest.mark.parametrize("id", ROOTS)
def test_a_job_that_stopped_after_it_blames_the_fabric(id: str) -> None:
    (finding,) = found(fabric_fault.DETECTOR, struck(id, at=LAST + 1, silent=60.0))
    assert (finding.cause, finding.severity) == (Cause.FABRIC, Severity.CRITICAL)
    assert not finding.cannot_heal


@pytest.mark.parametrize("id", sorted(set(IDS) - set(ROOTS)))
def test_what_follows_from_a_dead_peer_is_not_blamed(id: str) -> None:
    assert found(fabric_fault.DETECTOR, struck(id, at=LAST + 1, silent=60.0)) == []
