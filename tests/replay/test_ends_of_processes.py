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
    reported = read(tmp_path, *STEPS, LEFT_WELL, "Training completed", EXIT)
    assert reported.verdict.cause is Cause.FINISHED, "the trainer itself says so"
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


def test_what_a_spawned_process_died_of_is_read_from_the_exception_of_old_torch(
    tmp_path: Path,
) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/opt/site-packages/torch/multiprocessing/spawn.py", line 108, in join',
        "    raise Exception(",
        "Exception: process 0 terminated with signal SIGKILL",
    ]
    assert read(tmp_path, "loading train data", *raised).verdict.cause is Cause.KILLED


def test_a_host_that_mpi_lost_is_the_cause_of_the_codes_of_its_shells(tmp_path: Path) -> None:
    lost = "ORTE has lost communication with a remote daemon."
    code = "command terminated with exit code 137"
    assert read(tmp_path, *STEPS, code).verdict.cause is Cause.KILLED
    assert read(tmp_path, *STEPS, lost).verdict.cause is Cause.FABRIC
    assert read(tmp_path, *STEPS, lost, code).verdict.cause is Cause.LOST_POD
    killed = "worker-1   0/1   OOMKilled   0   22m"
    assert read(tmp_path, *STEPS, killed, lost, code).verdict.cause is Cause.OOM


def test_pods_evicted_for_the_disk_that_they_filled_are_stopped(tmp_path: Path) -> None:
    pods = ["sft-master-0  0/1  Evicted  0  2h", "sft-worker-1  0/1  ContainerStatusUnknown  0  2h"]
    why = (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 32, available: 30Ki. "
        "Container main was using 41Ki, request is 0, has larger consumption of ephemeral-storage."
    )
    report = read(tmp_path, *STEPS, *pods, f'"message": "{why}",')
    assert (report.verdict.cause, report.decision.action) == (Cause.STORAGE, Action.STOP)


def test_memory_that_efa_may_not_lock_is_no_lack_of_memory(tmp_path: Path) -> None:
    lines = ["Libfabric error: (-12) Cannot allocate memory", "srun: error: g7: task 4: Aborted"]
    report = read(tmp_path, "NCCL INFO NET/OFI Selected provider is efa", *lines)
    assert (report.verdict.cause, report.decision.action) == (Cause.FABRIC, Action.STOP)


def test_a_process_that_a_watchdog_ended_had_hung(tmp_path: Path) -> None:
    watchdog = (
        "Section 'checkpointing' has been open for 1801.12 seconds. Timeout is 1800.00 seconds."
    )
    failed = (
        "[ERROR] [ft_launcher@g7] failed (exitcode: -9) local_rank: 5 (pid: 45) of binary: python"
    )
    assert read(tmp_path, *STEPS, failed).verdict.cause is Cause.KILLED
    watched = f"[WARNING] [RankMonitorServer:5] {watchdog}"
    assert read(tmp_path, *STEPS, watched, failed).verdict.cause is Cause.HANG


def test_a_stage_without_a_loss_of_its_own_is_not_nan(tmp_path: Path) -> None:
    bar = "Epoch 0:   3%|# | {0}/20101 [2:11<76:16, 14.05s/it, loss=nan, {1}global_step={0}.0]"
    whole = [bar.format(n, "reduced_train_loss=3.94, ") for n in range(563, 575)]
    assert read(tmp_path, *whole).verdict.cause is not Cause.NAN
    bad = [bar.format(n, "reduced_train_loss=nan, ") for n in range(563, 575)]
    assert read(tmp_path, *bad).verdict.cause is Cause.NAN


def test_a_pod_that_somebody_deleted_is_lost_though_its_own_log_shows_nothing(
    tmp_path: Path,
) -> None:
    operator = (
        "Ignoring inactive pod kubeflow/j-worker-4 in state Running, deletion time 2024-05-20"
    )
    log = [f"INFO:tensorflow:loss = 0.40{n}, step = {n}00 (8.7 sec)" for n in range(1, 9)]
    taken = read(tmp_path, f'level=info msg="{operator} 21:10:28"', "$ kubectl logs w-4", *log)
    assert (taken.verdict.cause, taken.decision.action) == (Cause.LOST_POD, Action.RESTART)


def test_what_has_used_up_its_restarts_is_stopped(tmp_path: Path) -> None:
    event = "12s  Warning  ReachedMaxRestarts  jobset failed due to reaching max number of restarts"
    report = read(tmp_path, "node-0-0   0/1   Error   0   3m40s", event)
    assert report.decision.action is Action.STOP
    assert report.decision.is_advice


def test_a_bar_that_rises_shows_that_an_exception_was_caught(tmp_path: Path) -> None:
    raised = [
        "Traceback (most recent call last):",
        '  File "/opt/lib/python3.8/http/client.py", line 285, in _read_status',
        "http.client.RemoteDisconnected: Remote end closed connection without response",
    ]

    def bars(name: str) -> list[str]:
        full = "█" * 9
        return [
            f"{name}  {n}%|{full[: n // 10 + 1]}| {n}/289 [00:51<11:22,  2.54s/it]"
            for n in (9, 21, 42)
        ]

    assert read(tmp_path, *raised).decision.action is Action.RESTART
    assert read(tmp_path, *raised, *bars("ID 1 (4) | Ls |:")).decision.action is Action.NONE
    other = read(tmp_path, *raised, *bars("Loading checkpoint shards:"))
    assert other.decision.action is Action.RESTART, "another rank may still load"
