# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Each fault does what it says, once: the attempt after it passes the same place."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.launch import Job, field
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import verify

Train = Callable[..., Job]
SHORT = "--distributed-timeout-seconds 8"
"""No step of a rank that is well takes so long, on a busy machine either."""


def state_of(pid: int) -> str:
    """R, S, T … as the kernel tells it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def poll(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def judged(folder: Path, iteration: int) -> CheckpointState:
    found = verify(str(folder / "ck"), f"iter_{iteration:07d}")
    assert found
    return found.state


@pytest.mark.parametrize("kind", ["hang-collective", "data", "hang-first-step"])
def test_a_rank_that_waits_leaves_the_other_in_its_collective(train: Train, kind: str) -> None:
    step = 1 if kind == "hang-first-step" else 3
    job = train(f"--train-iters 5 --fault {kind}@{step} {SHORT}")
    job.until(f"fault {kind}@{step} on rank 1", 1)
    assert job.wait(ranks=[0]) == [1, None]
    assert "Timed out waiting 8000ms" in job.log(0)
    assert max(job.lines, default=0) == step - 1
    assert state_of(job.pids[1]) == "S"


def test_a_wait_can_have_an_end_and_then_nothing_is_lost(train: Train) -> None:
    job = train("--train-iters 5 --fault hang-collective@3:seconds=1:rank=0")
    assert job.wait() == [0, 0]
    assert max(job.lines) == 5
    assert float(field(job.lines[3], "elapsed time per iteration (ms)") or 0) > 900


def test_sigstop_stops_the_rank_and_it_can_be_continued(train: Train) -> None:
    job = train("--train-iters 5 --fault sigstop@3")
    assert poll(lambda: state_of(job.pids[1]) == "T")
    assert max(job.lines) == 2
    os.kill(job.pids[1], signal.SIGCONT)
    assert job.wait() == [0, 0]


def test_a_held_gil_stops_every_thread_of_the_rank(train: Train) -> None:
    job = train("--train-iters 5 --exit-signal-handler --fault gil@3:seconds=8")
    job.until("fault gil@3 on rank 1", 1)
    os.kill(job.pids[1], signal.SIGTERM)
    # A handler written in Python needs the GIL: nothing may answer before it is given back.
    began = time.monotonic()
    assert job.wait() == [0, 0]
    assert time.monotonic() - began > 1.0
    assert list(job.lines) == [1, 2, 3]


def test_a_wait_in_a_save_leaves_a_checkpoint_without_its_end(train: Train, tmp_path: Path) -> None:
    job = train(f"--train-iters 5 --save-interval 2 --fault hang-save@3 {SHORT}")
    assert job.wait(ranks=[0]) == [1, None]
    assert "fault hang-save@3 on rank 1" in job.log(1)
    assert "saving checkpoint at iteration       4 to " in job.log(0)
    assert "saved checkpoint from iteration       4" not in job.log(0)
    assert (judged(tmp_path, 2), judged(tmp_path, 4)) == (
        CheckpointState.COMPLETE,
        CheckpointState.INCOMPLETE,
    )


def test_a_wait_in_an_evaluation_comes_after_the_line_and_before_the_result(train: Train) -> None:
    job = train(f"--train-iters 5 --eval-interval 2 --fault hang-eval@3 {SHORT}")
    assert job.wait(ranks=[0]) == [1, None]
    assert max(job.lines) == 4
    assert "validation loss at iteration 2" in job.log(1)
    assert "validation loss at iteration 4" not in job.log(1)


def test_a_killed_rank_takes_the_others_along_and_the_next_attempt_passes(train: Train) -> None:
    flags = "--train-iters 5 --save-interval 2 --fault kill@4"
    job = train(flags)
    assert job.wait() == [1, -signal.SIGKILL]
    assert "Connection closed by peer" in job.log(0) or "Connection reset" in job.log(0)
    again = train(flags)
    assert again.wait() == [0, 0]
    assert list(again.lines) == [3, 4, 5]


def test_nan_stays_until_an_older_checkpoint_is_loaded(train: Train) -> None:
    flags = "--train-iters 8 --save-interval 2 --no-check-for-nan-in-loss-and-grad --fault nan@5"
    job = train(flags)
    assert job.wait() == [0, 0]
    assert [number for number in job.lines if field(job.lines[number], "lm loss")] == [1, 2, 3, 4]
    assert field(job.lines[8], "grad norm") == "nan"
    assert "lm loss value: NAN | lm loss PPL: 4.851652E+08" in job.log(1)
    poisoned = train(f"{flags} --ckpt-step 6")
    assert poisoned.wait() == [0, 0]
    assert field(poisoned.lines[7], "lm loss") is None
    healed = train(f"{flags} --ckpt-step 4")
    assert healed.wait() == [0, 0]
    assert all(field(line, "lm loss") for line in healed.lines.values())


def test_megatrons_guard_against_nan_saves_and_leaves_with_16(train: Train) -> None:
    job = train("--train-iters 5 --save-interval 2 --fault nan@4")
    assert job.wait() == [16, 16]
    assert "Unexpected result nan on rank 1 at iteration #4" in job.log(1)
    assert "saved checkpoint from iteration       3" in job.log(0)


def test_the_loss_scale_collapses_for_real_and_not_after_a_restart(train: Train) -> None:
    flags = (
        "--train-iters 16 --save-interval 4 --fp16 --initial-loss-scale 64 --hysteresis 1 "
        "--fault loss-scale-collapse@6"
    )
    job = train(flags)
    assert job.wait() == [0, 0]
    scales = [field(job.lines[number], "loss scale") for number in (5, 6, 7, 11, 12, 16)]
    assert scales == ["64.0", "32.0", "16.0", "1.0", "1.0", "1.0"]
    assert "number of skipped iterations:   1" in job.lines[16]
    rates = {field(job.lines[number], "learning rate") for number in range(5, 17)}
    assert len(rates) == 1, "the learning rate stands still while steps are skipped"
    again = train(f"{flags} --ckpt-step 4")
    assert again.wait() == [0, 0]
    assert {field(line, "loss scale") for line in again.lines.values()} == {"64.0"}


def test_a_slow_rank_makes_every_step_slow_until_a_restart(train: Train) -> None:
    job = train("--train-iters 22 --fault slow@20:seconds=0.8")
    assert job.wait() == [0, 0]
    times = [
        float(field(job.lines[number], "elapsed time per iteration (ms)") or 0)
        for number in range(2, 23)
    ]
    assert min(times[18:]) >= 800 > min(times[:18])


def test_memory_runs_out_in_torchs_own_words(train: Train) -> None:
    job = train("--train-iters 5 --fault oom@3:rank=0")
    assert job.wait() == [1, 1]
    assert "[rank0]: RuntimeError: " in job.log(0)
    assert "DefaultCPUAllocator: can't allocate memory" in job.log(0)


def test_a_corrupt_checkpoint_is_named_by_the_tracker_and_cannot_be_loaded(
    train: Train, tmp_path: Path
) -> None:
    flags = "--train-iters 6 --save-interval 2 --fault corrupt-checkpoint@3 --fault kill@5"
    assert -signal.SIGKILL in train(flags).wait()
    assert (tmp_path / "ck" / "latest_checkpointed_iteration.txt").read_text() == "4"
    assert (judged(tmp_path, 2), judged(tmp_path, 4)) == (
        CheckpointState.COMPLETE,
        CheckpointState.INCOMPLETE,
    )
    failed = train(flags)
    assert 0 not in failed.wait()
    assert "CheckpointException" in failed.log(0) + failed.log(1)
    again = train(f"{flags} --ckpt-step 2")
    assert again.wait() == [0, 0]
    assert judged(tmp_path, 4) == CheckpointState.COMPLETE


def test_a_half_written_checkpoint_has_files_and_no_end(train: Train, tmp_path: Path) -> None:
    flags = "--train-iters 5 --save-interval 2 --fault half-checkpoint@3"
    assert train(flags).wait() == [1, -signal.SIGKILL]
    names = {path.name for path in (tmp_path / "ck" / "iter_0000004").iterdir()}
    assert names >= {"__0_0.distcp", "__1_0.distcp"}
    assert "metadata.json" not in names
    assert judged(tmp_path, 4) == CheckpointState.INCOMPLETE
    assert (tmp_path / "ck" / "latest_checkpointed_iteration.txt").read_text() == "2"
    assert train(flags).wait() == [0, 0]


def test_a_full_disk_is_the_kernels_own_answer(train: Train, tmp_path: Path) -> None:
    flags = "--train-iters 5 --save-interval 2 --fault disk-full@3"
    job = train(flags)
    assert job.wait() == [1, 1]
    assert "[Errno 28] No space left on device" in job.log(0)
    assert not any(path.is_symlink() for path in (tmp_path / "ck").rglob("*"))
    assert train(flags).wait() == [0, 0]
    assert judged(tmp_path, 4) == CheckpointState.COMPLETE


def test_exit_16_saves_first_and_exit_0_does_not(train: Train, tmp_path: Path) -> None:
    flags = "--train-iters 6 --fault exit16@2 --fault exit0@4"
    first = train(flags)
    assert first.wait() == [16, 16]
    assert "saved checkpoint from iteration       2" in first.log(0)
    second = train(flags)
    assert second.wait() == [0, 0]
    assert list(second.lines) == [3, 4]
    assert "after training is done" not in second.log(0)
    assert (tmp_path / "ck" / "latest_checkpointed_iteration.txt").read_text() == "2"
    third = train(flags)
    assert third.wait() == [0, 0]
    assert "after training is done" in third.log(0)
