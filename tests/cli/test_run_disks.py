# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run` on disks that fill up or become read-only while it runs; trainers hard to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mwatch_trainer import contract
from support.hanging_fs import fill, make_read_only, mounted, small_disk, tell, why_not
from support.runs.live_runs import PATIENCE, command, left_behind, started, trainer
from support.runs.wrapper_runs import is_alive
from support.waiting import until

pytestmark = pytest.mark.timeout(400)
mounting = pytest.mark.skipif(bool(why_not()), reason=why_not())
HARM = [fill, make_read_only]


@mounting
@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("options", [[], ["--act"]], ids=["observe", "act"])
def test_training_comes_to_its_end_on_a_run_folder_that_cannot_be_written_any_more(
    tmp_path: Path, harm: Callable[[Path], None], options: list[str]
) -> None:
    line = trainer("--train-iters", "400", "--step-seconds", "0.2", "--hurry", "hurry")
    with small_disk(tmp_path / "runs", "4m"):
        with started(command(tmp_path, *options, then=line), tmp_path) as running:
            running.starts()
            harm(tmp_path / "runs")
            (tmp_path / "hurry").touch()
            ended = running.ends()
        assert ended.code == 0, ended.err.decode()
        assert left_behind(tmp_path) == []
    assert "Traceback" not in ended.err.decode()


@mounting
@pytest.mark.parametrize("harm", HARM)
def test_acting_on_checkpoints_that_cannot_be_written_any_more_ends_in_words(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    """The trainer itself dies of it: no restart can help, and nothing is left behind."""
    flags = ("--train-iters", "100000", "--step-seconds", "0.05", "--save", "ckpt")
    with small_disk(tmp_path / "ckpt", "2m"):
        with started(command(tmp_path, "--act", then=trainer(*flags)), tmp_path) as running:
            running.starts()
            until((tmp_path / "ckpt" / "latest_checkpointed_iteration.txt").exists)
            harm(tmp_path / "ckpt")
            ended = running.ends()
        assert ended.code in (1, 93), ended.err.decode()
        assert left_behind(tmp_path) == []
    assert "Traceback" not in "".join(each["summary"] for each in ended.said if "summary" in each)


@mounting
@pytest.mark.parametrize("options", [[], ["--act"]], ids=["observe", "act"])
def test_a_run_whose_folder_does_not_answer_any_more_is_reported_and_ends_at_a_signal(
    tmp_path: Path, options: list[str]
) -> None:
    then = trainer("--train-iters", "100000", "--step-seconds", "0.05")
    line = command(tmp_path, *options, "--grace", "2", then=then)
    with mounted(tmp_path / "runs") as disk, started(line, tmp_path) as running:
        running.starts()
        tell(disk, signal.SIGUSR1)
        running.says("does not answer: training goes on")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 130
        assert left_behind(tmp_path) == [disk.pid]


@mounting
def test_a_run_whose_folder_answers_again_comes_to_its_end(tmp_path: Path) -> None:
    then = trainer("--train-iters", "600", "--step-seconds", "0.2", "--hurry", "hurry")
    line = command(tmp_path, "--act", then=then)
    with mounted(tmp_path / "runs") as disk, started(line, tmp_path) as running:
        running.starts()
        tell(disk, signal.SIGUSR1)
        running.says("does not answer: training goes on")
        tell(disk, signal.SIGHUP)
        (tmp_path / "hurry").touch()
        assert running.ends().code == 0
        assert left_behind(tmp_path) == [disk.pid]


def test_a_named_pipe_in_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "attempt.json")
    assert contract.read_json(str(tmp_path / "attempt.json")) is None


HARD = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from support.runs.printing_trainer import print_line
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def pids(): open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
pids()
if not os.fork():          # a daemon, as its parents see it
    os.setsid()
    if not os.fork():
        os.chdir("/")
        pids()
        while True: time.sleep(1)
    os._exit(0)
if not os.fork():          # a group of its own
    os.setpgid(0, 0)
    pids()
    while True: time.sleep(1)
for step in range(1, 100000):
    time.sleep(0.05)
    print_line(step, 100000, 0.05, False)
"""


@pytest.mark.parametrize("options", [[], ["--act"]], ids=["observe", "act"])
def test_a_trainer_that_ignores_signals_daemonises_and_changes_its_group_is_ended(
    tmp_path: Path, options: list[str]
) -> None:
    tests = str(Path(__file__).resolve().parents[1])
    line = [*trainer()[:1], "-c", HARD, tests, str(tmp_path / "pids")]
    with started(command(tmp_path, *options, "--grace", "1", then=line), tmp_path) as running:
        running.starts()
        until(lambda: len((tmp_path / "pids").read_text().split()) == 3)
        running.process.send_signal(signal.SIGINT)
        assert running.ends().code == 130
        pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
        until(lambda: not any(map(is_alive, pids)))
        assert left_behind(tmp_path) == []
