# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What launchers and clusters report of single processes, and what that says of the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from support.runs.recorded import read

STEPS = [f"Epoch: 0 | Step: {n} | Actor Loss: 0.0{n}" for n in range(1, 9)]
LEFT_WELL = "[2026-07-05 09:40:31,877] [INFO] [launch.py:460:main] Process 7121 exits successfully."
FAILED = "[2026-07-05 09:40:33,879] [ERROR] [launch.py:324:sigkill_handler] {} = -6"
NETWORK = "g7:71:72 [2] NCCL WARN NET/IB : Got completion from peer 10.0.0.8<40216> with error 12"
EXIT = FAILED.format("['python', 'train.py'] exits with return code")
SEGFAULTS = [
    "Failures:",
    "[1]:",
    "  rank      : 1 (local_rank: 1)",
    "  exitcode  : -11 (pid: {})",
    "  traceback : Signal 11 (SIGSEGV) received by PID {}",
    "Root Cause (first observed failure):",
    "[0]:",
    "  rank      : 0 (local_rank: 0)",
    "  exitcode  : -11 (pid: 160)",
    "  traceback : Signal 11 (SIGSEGV) received by PID 160",
]


def test_one_process_that_left_well_does_not_hide_that_others_failed(tmp_path: Path) -> None:
    assert read(tmp_path, *STEPS, LEFT_WELL).verdict.cause is Cause.FINISHED
    below = read(tmp_path, *STEPS, LEFT_WELL, EXIT)
    assert below.verdict.cause is not Cause.FINISHED
    assert below.decision.action is Action.RESTART
    above = read(tmp_path, *STEPS, NETWORK, LEFT_WELL, EXIT)
    assert above.verdict.cause is Cause.FABRIC


def test_a_native_crash_of_several_processes_before_any_step_comes_again(tmp_path: Path) -> None:
    def judged(*lines: str) -> Action:
        return read(tmp_path, *lines).decision.action

    several = [line.format(161, 161) for line in SEGFAULTS]
    assert judged("Starting training", *several) is Action.STOP
    one = [line.format(160, 160) for line in SEGFAULTS]
    assert judged("Starting training", *one) is Action.RESTART
    assert judged(*STEPS, *several) is Action.RESTART, "it has worked before"


@pytest.mark.parametrize(("signal", "blamed"), [(15, None), (9, 2)])
def test_a_signal_that_ends_all_ranks_blames_none_of_them(
    signal: int, blamed: int | None, tmp_path: Path
) -> None:
    noticed = "mpirun noticed that process rank 2 with PID 77 on node g7 exited on signal"
    verdict = read(tmp_path, *STEPS, f"{noticed} {signal} (name).").verdict
    assert verdict.cause is Cause.KILLED
    assert (verdict.culprit.rank if verdict.culprit else None) == blamed


@pytest.mark.parametrize(
    ("message", "action"),
    [
        ("resource cpu unavailable in ClusterQueue", Action.STOP),
        ("insufficient quota for gpu in flavor h100, request > maximum capacity (64 > 48)",
         Action.STOP),
        ("insufficient unused quota for gpu in flavor h100, 8 more needed", Action.NONE),
    ],
)  # fmt: skip
def test_a_job_that_no_queue_can_ever_admit_is_for_a_person(
    message: str, action: Action, tmp_path: Path
) -> None:
    event = (
        f"Warning  Pending  4m  kueue-admission  couldn't assign flavors to pod set job: {message}"
    )
    report = read(tmp_path, "moe-12b   Suspended   3h41m", "Events:", event)
    assert (report.verdict.cause, report.decision.action) == (Cause.UNSCHEDULABLE, action)


def test_a_trainer_that_ray_restored_and_that_begins_anew_lost_its_checkpoint(
    tmp_path: Path,
) -> None:
    lost = [
        "(Train pid=4) {'loss': 0.4127, 'epoch': 5.0}",
        "The actor is dead because its node has died. Node Id: 0f8c31bb",
        "(Trainer pid=1) Restored on 10.0.0.7 from checkpoint: Checkpoint(path=x/checkpoint_4)",
    ]
    anew = "(Train pid=7) {{'loss': {}, 'epoch': {}.0}}"
    again = read(tmp_path, *lost, anew.format(1.64, 1), anew.format(1.47, 2))
    assert (again.verdict.cause, again.decision.action) == (Cause.STARTED_FROM_RANDOM, Action.STOP)
    goes_on = read(tmp_path, *lost, anew.format(0.39, 6), anew.format(0.37, 7))
    assert goes_on.verdict.cause is not Cause.STARTED_FROM_RANDOM


def test_a_hub_that_the_data_is_read_from_is_storage(tmp_path: Path) -> None:
    hub = "HTTPSConnectionPool(host='cdn.hub.co', port=443): Read timed out. (read timeout=10)"
    frames = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 412, in {}',
        "    batch = next(data_iterator)",
        "ConnectionError: Server Disconnected",
    ]
    for place, cause in (("batch_generator", Cause.STORAGE), ("main", Cause.FABRIC)):
        found = read(tmp_path, *STEPS, hub, *(line.format(place) for line in frames))
        assert found.verdict.cause is cause


def test_a_ray_worker_that_died_is_not_the_network_s_fault(tmp_path: Path) -> None:
    died = "(raylet) A worker died or was killed while executing a task by an unexpected error."
    store = (
        "[W214 08:07:31 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=1): Broken pipe"
    )
    assert read(tmp_path, "Step 1/10", died, store).verdict.cause is Cause.CRASH
    assert read(tmp_path, "Step 1/10", store).verdict.cause is Cause.FABRIC
