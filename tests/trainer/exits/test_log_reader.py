# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept of a trainer's output, in every flavour."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch_trainer.exits.log_reader import ExitLogReader, FailedWorker

ELASTIC = """\
E1115 8402 elastic/api.py:986] failed (exitcode: -15) local_rank: 0 (pid: 8) of binary: python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 8)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-15_07:27:29
  rank      : 9 (local_rank: 1)
  exitcode  : 17 (pid: 9)
"""


def read(*lines: str, seconds: float = 10.0) -> ExitLogReader:
    """`seconds`: from one line that says something to the next."""
    reader = ExitLogReader(itertools.count(0.0, seconds).__next__)
    for line in lines:
        reader.feed(line.encode())
    return reader


@pytest.mark.parametrize(
    ("line", "progress"),
    [
        (
            " [2026-11-15 07:08:44.4] iteration      610/  500000 | consumed samples: 1 |",
            (610, 500000),
        ),
        ("iteration 25/73242187 | consumed samples: 400 |", (25, 73242187)),
        ("[default7]: iteration       10/     400 | elapsed time", (10, 400)),
        ("3: [ts][I][t:1] iteration=  136004/  136100 | lm loss=12.3", (136004, 136100)),
        (" samples/sec: 5.3 | iteration 5/10 | elapsed time", (5, 10)),
        ("iteration: 327281 / 378950 | consumed_tokens: 85.8G |", (327281, 378950)),
        ("Training epoch 0, iteration 19/149 | lr: 2.9e-06 | global_step: 19", (20, 150)),
        ("[batch=20/100]:", (20, 100)),
        ("[epoch=1][batch=5/50]:", (5, 50)),
        ("[token=2048/1000000]:", (2048, 1000000)),
        ("[titan] 2026 - root - INFO - step: 14  loss:  3.24405  memory:  9GiB", (14, None)),
        ("INFO - \x1b[31mstep: 14  \x1b[32mloss:  3.2", (14, None)),
        ("Evaluating iter 3/10", (None, None)),
        ("[Eval batch=3/10] Eval on eval data", (None, None)),
        (" validation loss at iteration 50 | lm loss value: 1.0", (None, None)),
        ("  exit_interval ................................... 5", (None, None)),
    ],
)
def test_progress_is_read_in_every_flavour(
    line: str, progress: tuple[int | None, int | None]
) -> None:
    reader = read(line)
    assert (reader.iteration, reader.total) == progress


def test_the_distance_of_two_lines_is_learned() -> None:
    reader = read(*(f"iteration {n}/1000 | x |" for n in (1, 10, 20, 30)))
    assert reader.interval == 10


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[exiting program after receiving SIGTERM.] datetime: 2026-11-15 07:08:44 ", "signal"),
        ("[exiting program after 690.01 minutes] datetime: 2026-11-15 07:08:44 ", "duration"),
        ("[exiting program at iteration 20] datetime: 2026-11-15 07:08:44.5 ", "interval"),
        (">>> training terminated. Returning", "terminated"),
    ],
)
def test_a_good_bye_is_read(line: str, reason: str) -> None:
    assert read(line).goodbye == reason


def test_the_end_of_training_is_read() -> None:
    reader = read(
        "[before the start of training step] datetime: 2026-11-15 07:13:19.97 ",
        "[after training is done] datetime: 2026-11-15 07:14:19.97 ",
    )
    assert reader.has_begun and reader.is_done


def test_the_first_failed_worker_is_that_of_the_root_cause() -> None:
    assert read(*ELASTIC.splitlines()).worker == FailedWorker(9, 17)
    assert read(*(f"[default0]:{line}" for line in ELASTIC.splitlines())).worker == FailedWorker(
        9, 17
    )
    assert read(ELASTIC.splitlines()[0]).worker == FailedWorker(None, -15)


def test_a_line_that_torchrun_passes_on_late_does_not_hide_the_failure() -> None:
    reader = read(*ELASTIC.splitlines(), "[default0]: iteration 64/400 | x |")
    assert reader.worker == FailedWorker(9, 17)


def test_workers_that_were_started_again_are_not_the_ones_that_failed() -> None:
    marker = "[default0]:[before the start of training step] datetime: 2026-11-15 07:13:19 "
    assert read(*ELASTIC.splitlines(), marker).worker is None


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15",
        "W 8402 agent/server/api.py:723] Received 15 death signal, shutting down workers",
        "Received Signals.SIGTERM death signal, shutting down workers",
    ],
)
def test_a_signal_that_the_launcher_got_is_read(line: str) -> None:
    assert read(line).signal == 15


def test_composers_launcher_is_read() -> None:
    crashed = "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7."
    assert read(crashed, "Global rank 0 (PID 2088) exited with code -15").worker == FailedWorker(
        2, -7
    )
    assert read("Global rank 0 (PID 2088) exited with code 0").worker is None


def test_the_checkpoint_folder_is_learned_from_the_printed_arguments() -> None:
    reader = read(
        "  save ............................................ /data/ck pt",
        "  save_interval ................................... 10",
        "  save ............................................ None",
    )
    assert reader.save == "/data/ck pt"


def test_several_lines_may_come_at_once() -> None:
    reader = ExitLogReader()
    reader.feed(b"iteration 1/5 | x |\niteration 2/5 | x |\n")
    assert reader.iteration == 2


def test_a_traceback_ends_with_its_error() -> None:
    reader = read(
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        '[rank0]:   File "a.py", line 1, in f',
        "[rank1]: RuntimeError: NCCL communicator was aborted on rank 1.",
        "[rank0]: KeyError: 'math'",
    )
    root = reader.errors.root(None)
    assert root is not None and root.is_permanent
    assert root.description() == "rank 0: KeyError: 'math'"


def test_the_error_of_the_named_rank_is_the_cause() -> None:
    lines = []
    for rank, error in ((0, "ValueError: a"), (1, "TypeError: b")):
        lines += [f"[rank{rank}]: Traceback (most recent call last):", f"[rank{rank}]: {error}"]
    root = read(*lines).errors.root(1)
    assert root is not None and root.kind == "TypeError"


def test_an_error_that_training_survives_is_forgotten() -> None:
    traceback = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'x'")
    reader = read(*traceback, "iteration 1/9 | x |")
    assert reader.errors.root(None) is not None
    reader = read(*traceback, "iteration 1/9 | x |", "iteration 2/9 | x |")
    assert reader.errors.root(None) is None


def test_lines_of_one_moment_have_no_order() -> None:
    """stdout and stderr are two pipes: what was printed before an error may be read after it."""
    lines = ["Traceback (most recent call last):", "PermissionError: [Errno 13] Permission denied"]
    lines += [f"iteration {number}/9 | x |" for number in (1, 2, 3, 4)]
    root = read(*lines, seconds=0.5).errors.root(None)
    assert root is not None and root.kind == "PermissionError"


def test_an_ignored_exception_is_no_cause() -> None:
    reader = read(
        "Traceback (most recent call last):",
        "AssertionError: One or both of the .idx and .bin files cannot be found",
        "Exception ignored in: <function IndexedDataset.__del__ at 0x7f>",
        "Traceback (most recent call last):",
        "AttributeError: 'IndexedDataset' object has no attribute 'bin_reader'",
    )
    assert [each.kind for each in reader.errors.found] == ["AssertionError"]


def test_an_error_out_of_a_checkpoint_is_not_the_users() -> None:
    reader = read(
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/w/megatron/training/checkpointing.py", line 1, in load_checkpoint',
        "[rank0]: KeyError: 'optimizer'",
    )
    root = reader.errors.root(None)
    assert root is not None and root.at_checkpoint and not root.is_permanent


def test_memory_that_composer_does_with_less_of_is_no_error() -> None:
    line = (
        "CUDA out of memory or excessive memory allocation retries detected. "
        "Train microbatch size will be decreased from 8 -> 4."
    )
    assert read(line).errors.root(None) is None


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_it_never_raises(lines: list[bytes]) -> None:
    reader = ExitLogReader()
    for line in lines:
        reader.feed(b"Traceback (most recent call last)" + line)
        reader.feed(b"Root Cause (first observed failure)" + line)
        reader.feed(b"exitcode iteration " + line)
        reader.feed(line)


def test_memory_stays_bounded() -> None:
    reader = ExitLogReader()
    for number in range(1000):
        reader.feed(b"[rank%d]: Traceback (most recent call last):" % number)
        reader.feed(b"Traceback (most recent call last):")
        reader.feed(b"KeyError: " + b"x" * 5000)
    assert len(reader.errors.found) <= 128
    assert len(reader.errors.found[0].text) <= 300
