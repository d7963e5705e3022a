# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Broken GPUs and nodes: which line counts, what it blames, and what the job survived."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.gpu_fault import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Fault
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Attempt, FaultSeen, Job
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from support.builders.job import START, entries, fault, found, job, rank, step, steps

GPU = "0000:9b:00"
LAST = START + 130.0
"""When the job last finished an iteration."""


def xid(
    number: int, *, at: float = LAST, node: str = "node-7", gpu: str = GPU, **more: Any
) -> FaultSeen:
    return fault(f"xid-{number}", at=at, node=node, gpu=gpu, **more)


def recovery(action: str, *, at: float = LAST) -> FaultSeen:
    text = f"NVRM: Xid (PCI:{GPU}): 154, GPU recovery action changed from 0x0 (None) to {action}"
    return xid(154, at=at, text=text)


def struck(*faults: FaultSeen, **attempt: Any) -> Job:
    """A job that trained up to LAST, with these faults."""
    return job(steps([2.0] * 30), faults=list(faults), **attempt)


def verdict(*faults: FaultSeen, **attempt: Any) -> Finding:
    (finding,) = found(DETECTOR, struck(*faults, **attempt))
    return finding


def test_a_fatal_xid_names_node_gpu_and_number() -> None:
    finding = verdict(xid(79))
    assert finding.cause is Cause.HARDWARE
    assert finding.severity is Severity.CRITICAL
    assert finding.cannot_heal
    assert finding.fault == "xid-79"
    assert finding.fingerprint == "hardware/xid-79"
    assert finding.since_time == LAST
    assert finding.since_iteration == 30
    assert finding.culprit is not None
    assert finding.culprit.node == "node-7"
    assert finding.culprit.gpu_uuid == GPU
    assert finding.culprit.xid == 79


def test_after_the_last_line_the_next_iteration_is_the_bad_one() -> None:
    assert verdict(xid(79, at=LAST + 5)).since_iteration == 31


def test_without_a_fault_or_without_data_there_is_no_verdict() -> None:
    assert found(DETECTOR, struck()) == []
    built = struck(xid(79))
    built.sources = {}
    assert found(DETECTOR, built) == []
    built = job(steps([2.0] * 30), faults=[xid(79)], sights=[Source.GPU])
    assert len(found(DETECTOR, built)) == 1


@pytest.mark.parametrize("number", [93, 141, 162, 63, 92, 43, 45, 13, 31, 137, 11, 68, 145])
def test_what_is_benign_or_a_consequence_or_the_applications_stays_quiet(number: int) -> None:
    assert found(DETECTOR, struck(xid(number))) == []


def test_a_fault_that_the_job_outlived_is_shown_and_not_paged() -> None:
    """A GPU of somebody else on the same node, for one."""
    finding = verdict(xid(79, at=LAST - 25))
    assert finding.severity is Severity.WARNING
    assert not finding.cannot_heal
    assert "went on" in finding.summary


def test_beats_of_a_job_that_has_done_nothing_yet_are_not_outliving() -> None:
    """The probe tells where a resumed rank stands before it has done anything."""
    built = job(
        faults=[xid(79, at=START)], phase=JobPhase.LOADING, sights=[Source.LOG, Source.PROBE]
    )
    built.now = START + 60
    built.attempt.ranks = {0: rank(0, 400, at=built.now)}
    assert found(DETECTOR, built)[0].severity is Severity.CRITICAL


def test_a_line_that_was_under_way_is_not_outliving() -> None:
    assert verdict(xid(79, at=LAST - 2)).severity is Severity.CRITICAL


def test_a_lesser_xid_is_critical_only_when_the_job_stopped() -> None:
    assert verdict(xid(94)).severity is Severity.WARNING
    finding = verdict(xid(94), phase=JobPhase.ENDED, ended_at=LAST + 9)
    assert finding.severity is Severity.CRITICAL
    assert not finding.cannot_heal
    stalled = struck(xid(94))
    stalled.now += 60
    assert found(DETECTOR, stalled)[0].severity is Severity.CRITICAL


def test_the_first_of_a_burst_that_is_no_consequence_is_the_root() -> None:
    finding = verdict(xid(45), xid(95, at=LAST + 1), xid(43, at=LAST + 2), xid(79, at=LAST + 60))
    assert finding.fault == "xid-95"
    assert len(finding.evidence) == 2


def test_memory_errors_after_an_nvlink_error_follow_from_it() -> None:
    assert found(DETECTOR, struck(xid(149), xid(95, at=LAST + 1))) == []
    assert len(found(DETECTOR, struck(xid(95), xid(149, at=LAST + 1)))) == 1


def test_each_node_is_judged_for_itself() -> None:
    findings = found(DETECTOR, struck(xid(79), xid(48, at=LAST + 1, node="node-8")))
    assert [each.culprit.node for each in findings if each.culprit] == ["node-7", "node-8"]


def test_the_burst_that_stopped_the_job_counts_not_the_one_it_outlived() -> None:
    printed = [step(i, at=START + 100 + 60 * i, seconds=60.0) for i in range(1, 31)]
    old, new = xid(48, at=START + 400), xid(95, at=printed[-1].at)
    (finding,) = found(DETECTOR, job(printed, faults=[old, new]))
    assert finding.fault == "xid-95"
    assert finding.severity is Severity.CRITICAL


def test_xid_154_outranks_the_table() -> None:
    finding = verdict(xid(94), recovery("0x1 (GPU Reset Required)", at=LAST + 1))
    assert finding.fault == "xid-94"
    assert finding.cannot_heal
    assert "GPU Reset Required" in finding.summary
    alone = verdict(recovery("0x2 (Node Reboot Required)"))
    assert alone.cannot_heal
    assert alone.culprit is not None
    assert alone.culprit.xid == 154


@pytest.mark.parametrize("action", ["0x3 (Drain P2P)", "0x4 (Drain and Reset)"])
def test_a_gpu_that_is_only_to_be_drained_ends_no_job(action: str) -> None:
    assert not any(each.cannot_heal for each in found(DETECTOR, struck(recovery(action))))
    assert verdict(xid(79), recovery(action, at=LAST + 1)).cannot_heal


def test_xid_154_to_none_clears_what_came_before_on_that_gpu() -> None:
    clear = recovery("0x0 (None)", at=LAST + 5)
    assert found(DETECTOR, struck(xid(79), clear)) == []
    assert len(found(DETECTOR, struck(xid(79, gpu="0000:18:00"), clear))) == 1
    assert len(found(DETECTOR, struck(clear, xid(79, at=LAST + 9)))) == 1


def again(*before: FaultSeen, now: FaultSeen) -> list[Finding]:
    built = struck(now, phase=JobPhase.ENDED, ended_at=LAST + 9)
    built.past.append(Attempt(1, START, ended_at=START + 50, faults=list(before)))
    return found(DETECTOR, built)


def test_an_applications_xid_that_returns_on_one_gpu_is_the_gpus() -> None:
    (finding,) = again(xid(31, at=START - 3600), now=xid(31))
    assert finding.cause is Cause.HARDWARE
    assert finding.confidence < 0.7
    assert not finding.cannot_heal


def test_an_applications_xid_on_several_gpus_is_software() -> None:
    assert again(xid(31, at=START - 3600, gpu="0000:18:00"), now=xid(31)) == []
    assert found(DETECTOR, struck(xid(31), xid(31, at=LAST + 1, gpu="0000:18:00"))) == []


def test_an_applications_xid_of_last_week_is_no_repeat() -> None:
    assert again(xid(31, at=START - 7 * 86400), now=xid(31)) == []
    assert again(xid(137, at=START - 3600), now=xid(137)) == []


def test_an_xid_that_the_catalogue_lacks_is_shown() -> None:
    text = f"NVRM: Xid (PCI:{GPU}): 999, pid=1, name=python3, something new"
    new = Fault("xid-unknown", "node-7", GPU, text, "root", None, None, "kern.log", 3)
    finding = verdict(FaultSeen(LAST, "node-7", new, None))
    assert finding.severity is Severity.WARNING
    assert finding.culprit is not None
    assert finding.culprit.xid == 999


def test_cuda_and_the_host_have_words_of_their_own() -> None:
    finding = verdict(fault("gpu-ecc-uncorrectable", at=LAST, rank=3))
    assert finding.cannot_heal
    assert finding.culprit is not None
    assert finding.culprit.rank == 3
    assert finding.culprit.xid is None


def test_after_an_error_of_the_job_a_vague_cuda_error_is_its_echo() -> None:
    user = fault("cuda-device-assert", at=LAST - 1)
    assert found(DETECTOR, struck(user, fault("cuda-unknown-error", at=LAST))) == []
    assert len(found(DETECTOR, struck(user, fault("gpu-ecc-uncorrectable", at=LAST)))) == 1


def test_evictions_and_old_drivers_are_not_broken_hardware() -> None:
    assert found(DETECTOR, struck(fault("k8s-evicted"), fault("cuda-driver-too-old"))) == []


def test_a_finished_run_outlived_everything() -> None:
    assert verdict(xid(79), is_done=True).severity is Severity.WARNING


def test_every_entry_of_the_catalogue_can_be_judged() -> None:
    for id, entry in entries().items():
        for finding in found(DETECTOR, struck(fault(id, at=LAST, text="short"))):
            assert finding.fault == id
            assert entry.blame in ("gpu", "node")
