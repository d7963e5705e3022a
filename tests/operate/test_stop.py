# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch stop` before it acts, and where the cluster does not do as it is told.

On the real API server it is in `tests/cluster/test_people.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from kube.fake_api import Reply
from mwatch.errors import InputError
from mwatch.operate.overrides import JobOverrides
from mwatch.operate.stop import ManualStop, StopTimes
from support.builders import kube
from support.builders.diagnose import words
from support.fakes.job_api import JOB, access_to, job_api
from support.runs.commands import mwatch


def job_of(*command: str, grace: int | None = None) -> dict[str, Any]:
    container = {"name": "pytorch", "command": list(command)}
    spec: dict[str, Any] = {"containers": [container]}
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    groups = {"Worker": {"replicas": 1, "template": {"spec": spec}}}
    return kube.body("PyTorchJob", {"pytorchReplicaSpecs": groups, "runPolicy": {}})


SAVES = ("pretrain_gpt.py", "--exit-signal-handler")


@pytest.mark.parametrize(
    ("job", "line"),
    [
        (job_of("python", *SAVES, grace=300), "it saves on SIGTERM (--exit-signal-handler)"),
        (job_of("torchrun", *SAVES, grace=300), "has 30 s for that"),
        (job_of("python", *SAVES, grace=10), "has 10 s for that"),
        (job_of("torchrun", "pretrain_gpt.py"), "it ends without a save"),
    ],
)  # fmt: skip
def test_the_question_says_whether_it_saves_and_how_long_it_may(
    job: dict[str, Any], line: str
) -> None:
    with (
        job_api([words("train-0")], pages={f"{JOB}/train": Reply(200, job)}) as api,
        access_to(api) as access,
    ):
        plan = ManualStop(JobOverrides(access, "ns"), lambda job: 40).prepare("train")
    assert "1 pods, newest checkpoint: 40; it will be suspended" in plan.lines[0]
    assert line in plan.lines[1]


def test_a_job_that_something_else_starts_again_and_again_is_an_error() -> None:
    """This server accepts each change, and makes none."""
    times, lines = iter(range(0, 10_000, 50)), list[str]()
    clock = StopTimes(wait=lambda seconds: None, clock=lambda: float(next(times)))
    with job_api([words("train-0")]) as api, access_to(api) as access:
        manual = ManualStop(JobOverrides(access, "ns"), lambda job: 40, clock)
        plan = manual.prepare("train")
        with pytest.raises(InputError, match="again and again"):
            manual.run(plan, "", lines.append)
        stops = [each for each in api.asked if each[0] == "PATCH" and each[1] == f"{JOB}/train"]
    assert len(stops) == 4 and lines[0] == "train: suspended; waiting for 1 pods to end"


def test_without_a_terminal_it_needs_the_flag_yes() -> None:
    done = mwatch("stop", "train", "-n", "ns")
    assert (done.returncode, done.stdout) == (2, "") and "add --yes" in done.stderr
