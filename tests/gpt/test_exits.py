# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ways to end that were asked for."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

from gpt.launch import Job

Train = Callable[..., Job]


def test_sigterm_to_one_rank_saves_and_ends_all_with_0(train: Train) -> None:
    job = train("--train-iters 100000 --exit-signal-handler --log-interval 1")
    job.until(" iteration        3/", 1)
    os.kill(job.pids[1], signal.SIGTERM)
    assert job.wait() == [0, 0]
    last = max(job.lines)
    assert f"saved checkpoint from iteration {last:7d}" in job.log(0)
    assert "[exiting program after receiving SIGTERM.] datetime: " in job.log(0)


def test_without_the_handler_sigterm_ends_at_once(train: Train) -> None:
    job = train("--train-iters 100000")
    job.until(" iteration        2/", 1)
    os.kill(job.pids[1], signal.SIGTERM)
    assert job.wait() == [1, -signal.SIGTERM]
    assert "saving checkpoint" not in job.log(0)


def test_an_exit_interval_saves_and_says_so(train: Train) -> None:
    job = train("--train-iters 9 --exit-interval 4 --save-interval 2")
    assert job.wait() == [0, 0]
    assert max(job.lines) == 4
    assert job.log(0).count("saving checkpoint at iteration       4") == 1
    assert "[exiting program at iteration 4] datetime: " in job.log(0)


def test_an_exit_duration_is_reported_in_minutes(train: Train) -> None:
    job = train("--train-iters 100000 --log-interval 100 --exit-duration-in-mins 0.02")
    assert job.wait() == [0, 0]
    assert re.search(r"\[exiting program after 0\.\d+ minutes\] datetime: ", job.log(0))


def test_skipped_iterations_pass_without_a_line_and_their_samples_are_counted(
    train: Train,
) -> None:
    job = train("--train-iters 6 --iterations-to-skip 2 3")
    assert job.wait() == [0, 0]
    assert list(job.lines) == [1, 2, 5, 6]
    assert "consumed samples:           20 | skipped samples:            8 |" in job.lines[5]


def test_an_asynchronous_save_is_complete_later_than_it_is_queued(
    train: Train, tmp_path: Path
) -> None:
    job = train("--train-iters 6 --save-interval 2 --async-save --log-progress")
    assert job.wait() == [0, 0]
    stages = ["saving", "scheduled an async", "successfully saved"]
    printed = re.findall(rf"({'|'.join(stages)}) checkpoint .*?iteration +(\d+) ", job.log(0))
    # A slow writer may end after the next save has begun: only each save has its order.
    assert len(printed) == 3 * len(stages)
    for iteration in ("2", "4", "6"):
        assert [stage for stage, at in printed if at == iteration] == stages
    progress = (tmp_path / "ck" / "progress.txt").read_text()
    assert progress.count("Saving async checkpoint") == progress.count("Saved async") == 3


def test_old_checkpoints_go_when_asked(train: Train, tmp_path: Path) -> None:
    job = train("--train-iters 6 --save-interval 2 --save-retain-interval 4")
    assert job.wait() == [0, 0]
    kept = sorted(path.name for path in (tmp_path / "ck").glob("iter_*"))
    assert kept == ["iter_0000004", "iter_0000006"]
    assert "successfully deleted checkpoint from iteration       2" in job.log(0)


def test_a_missing_checkpoint_can_be_a_reason_to_leave(train: Train) -> None:
    job = train("--exit-on-missing-checkpoint")
    assert job.wait() == [0, 0]
    assert ">> '--exit-on-missing-checkpoint' set ... exiting. <<" in job.log(0)
    assert job.lines == {}


def test_transformer_engine_is_refused_in_one_line_where_it_cannot_be(train: Train) -> None:
    for flags in ("--transformer-impl transformer_engine", "--fp8"):
        job = train(flags, ranks=1)
        assert job.wait() == [1]
        (line,) = job.log(0).splitlines()
        assert line.startswith("mwatch_gpt: --")
