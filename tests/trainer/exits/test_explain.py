# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What an exit means, by real logs and by what each flavour prints."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.exits.explain import ExplainedExit, explain, oom_kills
from mwatch_trainer.exits.log_reader import ExitLogReader

CORPUS = Path(__file__).parents[2] / "corpus"
PLAN = AttemptPlan(1, ("torchrun", "pretrain_gpt.py"), {})
RANK_0 = "[before the start of training step] datetime: 2026-11-15 07:13:19.97 "


def ended(
    returncode: int,
    *lines: str,
    asked: str | None = None,
    plan: AttemptPlan = PLAN,
    oom: bool = False,
) -> ExplainedExit:
    reader = ExitLogReader(itertools.count(0.0, 10.0).__next__)  # lines come one after the other
    for line in lines:
        reader.feed(line.encode())
    return explain(returncode, reader, asked, plan, oom)


@pytest.mark.parametrize(
    ("log", "returncode", "returned"),
    [
        ("normal-end/trainer.log", 0, 0),
        ("async-save/trainer.log", 0, 0),
        ("two-pods/node0.log", 0, 0),
        ("two-pods/node1.log", 0, 0),
        ("exit-interval/trainer.log", 0, 0),
        ("sigterm/trainer.log", 0, 143),
        ("sigterm-torchrun/trainer.log", 1, 143),
        ("load-fails-exit-0/trainer.log", 0, 200),
        ("checkpoint-tracker-garbage/trainer.log", 0, 200),
        ("killed/trainer.log", 0, 200),
        ("killed/trainer.log", 1, 137),
        ("torchrun-killed-twice/trainer.log", 1, 137),
        ("hang-nccl-timeout/trainer.log", 1, 134),
        ("persistent-error/trainer.log", 1, 216),
        ("checkpoint-bit-flip/trainer.log", 16, 216),
        ("oom/trainer.log", 1, 1),
        ("oom-mid-run/trainer.log", 1, 1),
        ("user-error-rank-1/trainer.log", 1, 1),
        ("disk-full/trainer.log", 1, 201),
        ("checkpoint-file-missing/trainer.log", 1, 201),
        ("checkpoint-shard-cut/trainer.log", 1, 201),
        ("two-pods-crash/node0.log", 1, 201),
    ],
)
def test_a_real_log_is_distinguished(log: str, returncode: int, returned: int) -> None:
    lines = (CORPUS / log).read_text(errors="replace").splitlines()
    told = ended(returncode, *lines)
    assert (told.code, told.returned, told.was_requested) == (
        returncode,
        returned,
        log.startswith("exit-interval"),
    )
    assert told.is_final == (returned < 128)


@pytest.mark.parametrize(
    ("returncode", "returned"),
    [(-9, 137), (-15, 143), (-11, 139), (137, 137), (143, 143), (16, 216), (17, 217)],
)
def test_signals_and_reruns_are_worth_a_restart(returncode: int, returned: int) -> None:
    told = ended(returncode)
    assert told.returned == returned and not told.is_final
    assert told.signal == (-returncode if returncode < 0 else None)


def test_an_unknown_failure_is_worth_a_restart() -> None:
    assert ended(1).returned == 201
    assert ended(3, "iteration 5/10 | x |").returned == 201
    assert ended(255).returned == 201


def test_a_command_that_never_ran_is_permanent() -> None:
    assert [ended(code).returned for code in (2, 126, 127)] == [2, 126, 127]
    assert ended(2, "iteration 5/10 | x |").returned == 201


def test_wrong_arguments_are_permanent() -> None:
    line = "pretrain_gpt.py: error: unrecognized arguments: --learning-rate 3e-4"
    worker = "api.py:986] failed (exitcode: 2) local_rank: 0 (pid: 20869) of binary: python3"
    assert ended(2, line).returned == 1
    assert ended(1, line, worker).returned == 1


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: NCCL communicator was aborted on rank 0.",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:93, remote process exited",
        "OSError: [Errno 5] Input/output error: '/data/x'",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "AssertionError: Rank 11: found NaN in local grad norm in backward pass",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "RuntimeError: mystery",
    ],
)
def test_what_may_heal_is_worth_a_restart(error: str) -> None:
    assert ended(1, "Traceback (most recent call last):", error).returned == 201


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device: '/ckpt/iter_0000500/__3_0.distcp'",
        "OSError: [Errno 122] Disk quota exceeded: '/ckpt/iter_0000500'",
        "OSError: [Errno 30] Read-only file system: '/ckpt'",
        "RuntimeError: unable to write to file </torch_4711_3>: No space left on device (28)",
    ],
)
def test_a_disk_that_takes_nothing_is_permanent_even_in_a_save(error: str) -> None:
    saving = '  File "megatron/training/checkpointing.py", line 500, in save_checkpoint'
    told = ended(1, "Traceback (most recent call last):", saving, error)
    assert (told.returned, told.is_final) == (1, True)


def test_a_keyboard_interrupt_is_a_signal() -> None:
    assert ended(1, "Traceback (most recent call last):", "KeyboardInterrupt").returned == 130


def test_an_early_0_is_distinguished_from_the_last_interval() -> None:
    lines = [f"iteration {n}/95 | x |" for n in (10, 20, 30)]
    assert ended(0, RANK_0, *lines).returned == 200
    more = [f"iteration {n}/95 | x |" for n in range(40, 100, 10)]
    assert ended(0, RANK_0, *lines, *more).returned == 0
    assert ended(0, *lines, *more).returned == 0
    assert ended(0, "[batch=100/4800]:", "[batch=101/4800]:").returned == 200
    assert ended(0, "[batch=4790/4800]:", "[batch=4800/4800]:").returned == 0


def test_a_pod_that_saw_nothing_trusts_the_0() -> None:
    assert ended(0).returned == 0
    assert ended(0, "INFO - step: 14  loss:  3.2").returned == 0
    assert ended(0, RANK_0).returned == 200


def test_the_pod_of_the_last_rank_knows_the_exit_that_was_asked_for() -> None:
    lines = ["iteration 5/100 | x |", "iteration 10/100 | x |"]
    given = ("torchrun", "pretrain_gpt.py", "--exit-interval", "10")
    plan = AttemptPlan(1, given, {}, nnodes=2)
    assert ended(0, *lines, plan=plan).returned == 0
    assert ended(0, *lines, plan=plan._replace(argv=(*given[:3], "9"))).returned == 200
    timed = ("torchrun", "pretrain_gpt.py", "--exit-duration-in-mins", "60")
    assert ended(0, *lines, plan=plan._replace(argv=timed)).returned == 0
    assert ended(0, RANK_0, *lines, plan=plan).returned == 200
    assert ended(0, *lines, plan=PLAN).returned == 200


def test_no_checkpoint_to_load_is_the_users_mistake_where_none_was_chosen() -> None:
    line = ">> '--exit-on-missing-checkpoint' set ... exiting. <<"
    assert ended(0, line).returned == 1
    assert ended(1, line).returned == 1
    assert ended(0, line, plan=PLAN._replace(resume_from=30)).returned == 200


def test_what_was_asked_for_is_no_failure() -> None:
    for returncode in (0, 1, -15, -9):
        told = ended(returncode, "iteration 5/100 | x |", asked="signal: SIGTERM")
        assert (told.returned, told.was_requested) == (143, True)
    assert ended(1, asked="signal: SIGINT").returned == 130
    assert ended(-9, asked="stop: hang").returned == 143
    assert ended(-15, asked="stop: the job was deleted").returned == 0
    assert ended(-15, asked="stop: suspended by kueue").is_final
    assert ended(0, "iteration 9/9 | x |", asked="signal: SIGTERM").returned == 0


def test_a_fenced_attempt_has_its_own_code() -> None:
    told = ended(-15, asked="fence: attempt 4 has begun")
    assert (told.returned, told.was_requested, told.is_final) == (203, False, False)


def test_a_kill_for_want_of_memory_is_named() -> None:
    assert "memory" in ended(-9, oom=True).reason
    assert ended(1, oom=True).returned == 137
    worker = "api.py:986] failed (exitcode: -9) local_rank: 0 (pid: 20869) of binary: python3"
    assert "memory" in ended(1, worker, oom=True).reason
    assert "memory" not in ended(-11, oom=True).reason


def test_the_count_of_kills_is_read_from_both_kinds_of_cgroup(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/kubepods/pod1\n")
    events = tmp_path / "v2" / "kubepods" / "pod1" / "memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 9\n")
    assert oom_kills(str(tmp_path / "v2"), str(own)) == 2
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "memory.events").write_text("oom_kill 1\n")
    assert oom_kills(str(tmp_path / "flat"), str(own)) == 1
    control = tmp_path / "v1" / "memory" / "docker" / "memory.oom_control"
    control.parent.mkdir(parents=True)
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    own.write_text("9:cpu:/x\n5:memory:/docker\n1:name=systemd:/\n")
    assert oom_kills(str(tmp_path / "v1"), str(own)) == 4
    assert oom_kills(str(tmp_path / "none"), str(tmp_path / "missing")) is None
