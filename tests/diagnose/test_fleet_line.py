# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One job in one line: by its controller, by its sidecars, by Kubernetes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mwatch.cli.render.jobs import render_fleet
from mwatch.cli.shared.terminal import within
from mwatch.diagnose.fleet_status import Fleet, FleetLine, of_controller, of_sidecars
from mwatch.diagnose.pod_reports import PodReport
from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.kube.facts import KubeFacts
from support.builders.diagnose import BEGAN, answering, stamp, words
from support.builders.kube import pytorch_job

JOB = pytorch_job()
TOLD: dict[str, Any] = {
    "kind": "PyTorchJob", "name": "train", "phase": "training", "attempt": 3, "iteration": 40,
    "total_iterations": 100, "pods": {"wanted": 2, "running": 2, "answering": 2},
    "verdict": {"cause": "hang", "summary": "no progress", "since": {"time": stamp(BEGAN)}},
}  # fmt: skip


def facts(*told: PodReport, **more: Any) -> KubeFacts:
    return KubeFacts(BEGAN, replace(JOB, **more), "train", tuple(each.pod for each in told))


def with_finding(told: PodReport, finding: Finding) -> PodReport:
    assert told.snapshot is not None
    return told._replace(snapshot=replace(told.snapshot, findings=(finding,)))


def test_the_controllers_word_is_taken_as_it_is() -> None:
    line = of_controller(JOB, TOLD)
    assert (line.cause, line.iteration, line.since) == ("hang", 40, BEGAN)
    assert line.source == "controller"


def test_a_controller_of_another_release_leaves_gaps_and_no_error() -> None:
    line = of_controller(JOB, {"verdict": None, "pods": [], "iteration": "many"})
    assert (line.cause, line.iteration, line.pods_running) == ("unknown", None, None)


def test_a_job_that_was_over_before_the_controller_came_is_finished() -> None:
    over = replace(JOB, finished="Succeeded")
    line = of_controller(over, {**TOLD, "verdict": {"cause": "unknown"}})
    assert (line.cause, line.phase) == ("finished", "Succeeded")


def test_a_sidecar_that_finds_nothing_is_a_healthy_job() -> None:
    told = [answering("train-0", at=5.0), answering("train-1", at=5.0)]
    line = of_sidecars(JOB, facts(*told), told)
    assert (line.cause, line.answering, line.source) == ("healthy", 2, "sidecars")


def test_the_worst_finding_of_any_sidecar_is_shown() -> None:
    mild = Finding("slow", Cause.SLOW, Severity.WARNING, "slow")
    bad = Finding("gpu_fault", Cause.HARDWARE, Severity.CRITICAL, "Xid 79", since_time=BEGAN)
    told = [
        with_finding(answering("train-0", at=5.0), mild),
        with_finding(answering("train-1", at=5.0), bad),
    ]
    line = of_sidecars(JOB, facts(*told), told)
    assert (line.cause, line.summary) == ("hardware", "Xid 79")


def test_a_middle_pod_that_sees_no_lines_does_not_make_the_job_blind() -> None:
    blind = Finding("blind", Cause.BLIND, Severity.WARNING, "no iteration line")
    told = [with_finding(answering("train-0", at=5.0), blind), answering("train-1", at=5.0)]
    assert of_sidecars(JOB, facts(*told), told).cause == "healthy"


def test_without_a_sidecar_it_is_not_known_and_the_command_is_named() -> None:
    told = [words("train-0"), words("train-1")]
    line = of_sidecars(JOB, facts(*told), told)
    assert line.cause == "unknown"
    assert "mwatch diagnose train" in line.summary


def test_pods_that_train_without_the_wrapper_are_not_watched() -> None:
    alone = answering("train-0", at=5.0)
    assert alone.snapshot is not None
    view = msgspec.structs.replace(alone.snapshot.view, unwatched="no Python here")
    told = [
        alone._replace(snapshot=replace(alone.snapshot, view=view)),
        answering("train-1", at=5.0),
    ]
    line = of_sidecars(JOB, facts(*told), told)
    assert line.cause == "blind"
    assert line.summary == "not watched: 1 of 2 pods train without mwatch: no Python here"


def test_kubernetes_knows_what_is_over_suspended_or_failed() -> None:
    assert of_sidecars(JOB, facts(finished="Succeeded"), []).cause == "unknown"
    over = replace(JOB, finished="Succeeded")
    assert of_sidecars(over, KubeFacts(BEGAN, over, "train"), []).cause == "finished"
    failed = replace(JOB, finished="Failed")
    assert of_sidecars(failed, KubeFacts(BEGAN, failed, "train"), []).cause == "crash"
    held = replace(JOB, is_suspended=True)
    assert of_sidecars(held, KubeFacts(BEGAN, held, "train"), []).cause == "suspended"


def fleet(*causes: str) -> Fleet:
    lines = (of_controller(JOB, {**TOLD, "verdict": {"cause": cause}}) for cause in causes)
    return Fleet(BEGAN + 60.0, tuple(lines), (), 0.1)


def test_the_exit_code_is_by_the_worst_of_them() -> None:
    assert fleet().exit_code == 0
    assert fleet("healthy", "finished").exit_code == 0
    assert fleet("healthy", "unknown").exit_code == 3
    assert fleet("unknown", "hang").exit_code == 1


def test_a_table_has_one_line_for_each_and_shows_since_when() -> None:
    told = Fleet(BEGAN + 60.0, (of_controller(JOB, TOLD),), ("jobsets is forbidden",), 0.1)
    lines = ["".join(text for text, _ in line) for line in render_fleet(told, with_namespace=True)]
    assert len(lines) == 3
    assert lines[1].split()[:8] == ["ns", "train", "PyTorchJob", "act", "training", "2/2", "40/100",
                                    "hang"]  # fmt: skip
    assert "60 s" in lines[1]
    assert lines[2] == "not read: jobsets is forbidden"


@pytest.mark.parametrize(("columns", "kept"), [(160, 9), (70, 7), (50, 4), (36, 3), (1, 3)])
def test_a_narrow_terminal_still_shows_job_verdict_and_culprit(columns: int, kept: int) -> None:
    verdict = {**TOLD["verdict"], "culprit": {"rank": 3, "state": "stuck", "pod": "train-1"}}
    told = Fleet(BEGAN, (of_controller(JOB, {**TOLD, "verdict": verdict}),), (), 0.1)
    with within(columns):
        head, row = (
            "".join(text for text, _ in line) for line in render_fleet(told, with_namespace=False)
        )
    assert len(head.split()) == kept
    if columns >= 36:
        assert head.split()[0] == "JOB" and "VERDICT" in head and "hang" in row
        assert row.endswith("rank 3, pod train-1") or "no progress" in row
        assert len(row) <= columns


def test_a_culprit_of_another_release_is_left_out() -> None:
    verdict = {**TOLD["verdict"], "culprit": {"rank": "three"}}
    assert of_controller(JOB, {**TOLD, "verdict": verdict}).culprit is None


def test_what_was_missed_is_a_line_as_well() -> None:
    line = FleetLine.of(JOB, summary="no answer within 4 s")
    assert (line.cause, line.summary) == ("unknown", "no answer within 4 s")
