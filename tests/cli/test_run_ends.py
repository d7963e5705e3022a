# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Healthy ends that look like failures: a training in the background, and one that stops early."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from support.runs.live_runs import Finished, command, run, trainer
from support.runs.wrapper_runs import is_alive
from support.waiting import until

SOON = """
[act]
backoff_first_seconds = 0.1
backoff_factor = 1.0
lost_pod_seconds = 0.5
"""
STOPS_EARLY = """
import sys
sys.path[:0] = {paths!r}
from pathlib import Path
from support.runs import printing_trainer as it
save = Path(sys.argv[sys.argv.index("--save") + 1])
first = it._loaded(save, None)
print("[before the start of training step] datetime: 2026-11-15 09:00:00 ", flush=True)
last = {last}
for step in range(first + 1, last + 1):
    it.train_step(0.02)
    it.print_line(step, 1000, 0.02, False)
if last > first:
    it._save(save, last)
print("validation loss has not improved: early stopping", flush=True)
"""


def script(folder: Path, last: str) -> list[str]:
    file = folder / "train.py"
    tests = str(Path(__file__).parents[1])
    file.write_text(STOPS_EARLY.format(paths=[tests, *sys.path], last=last))
    save = str(folder / "ck")
    return [sys.executable, str(file), "--save", save, "--load", save]


def ended(folder: Path, line: list[str]) -> Finished:
    return run(command(folder, "--act", then=line, policy=SOON), folder)


def test_a_second_end_at_the_same_place_is_the_end(tmp_path: Path) -> None:
    done = ended(tmp_path, script(tmp_path, "7"))
    assert done.code == 0, done.err.decode()
    assert [each["resume_from"] for each in done.of("attempt")] == [None, 7]
    assert [each["cause"] for each in done.of("incident")] == ["finished_early"]
    (end,) = done.of("end")
    assert end["summary"] == "training finished: it ended at iteration 7 of 1000 by itself, twice"
    assert done.attempt["exit"]["returned"] == 0
    verdict = done.story["verdict"]
    assert verdict["cause"] == "finished"
    assert verdict["summary"] == "training ended at iteration 7 of 1000 by itself, twice"


def test_without_a_last_save_it_repeats_the_same_steps(tmp_path: Path) -> None:
    save = str(tmp_path / "ck")
    line = trainer("--then", "leave", "--save", save, "--load", save)
    done = ended(tmp_path, line)
    assert done.code == 0, done.err.decode()
    assert [each["resume_from"] for each in done.of("attempt")] == [None, 8]
    assert "at iteration 9 of 20 by itself, twice" in done.of("end")[0]["summary"]


def test_an_end_that_got_further_is_started_again(tmp_path: Path) -> None:
    """It has a limit of its own for each start, and is done after the third."""
    done = ended(tmp_path, script(tmp_path, "min(first + 5, 15)"))
    assert done.code == 0, done.err.decode()
    assert [each["resume_from"] for each in done.of("attempt")] == [None, 5, 10, 15]
    assert "at iteration 15 of 1000 by itself, twice" in done.of("end")[0]["summary"]


@pytest.mark.parametrize("mode", [["--act"], []], ids=["act", "observe"])
@pytest.mark.parametrize("output", ["> log 2>&1", ""], ids=["file", "pipe"])
def test_a_training_in_the_background_goes_on(tmp_path: Path, mode: list[str], output: str) -> None:
    hurry = tmp_path / "hurry"
    flags = ["--train-iters", "4000", "--step-seconds", "0.1", "--hurry", str(hurry)]
    start = f"cd {tmp_path}; nohup {' '.join(trainer(*flags))} {output} & echo $! > pid; sleep 3"
    line = ["bash", "-c", start]
    try:
        done = run(command(tmp_path, *mode, then=line), tmp_path)
        pid = int((tmp_path / "pid").read_text())
        assert done.code == 0, done.err.decode()
        assert is_alive(pid)
        assert not any(each["is_done"] for each in done.of("action"))
        notes = [each["summary"] for each in done.of("note") if "still running" in each["summary"]]
        assert len(notes) == 1
        assert f"still running: {pid} (" in notes[0]
        assert "printing_trainer.py" in notes[0]
        assert b"mwatch-run:" not in done.err
        assert notes[0] in str(done.story)
        if mode:
            assert not done.of("incident")
        hurry.touch()
        until(lambda: not is_alive(pid))
        if output:
            assert "[after training is done]" in (tmp_path / "log").read_text()
    finally:
        with suppress(OSError, ValueError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_what_a_crash_left_behind_is_ended_before_the_restart(tmp_path: Path) -> None:
    once = tmp_path / "once"
    first = f"touch {once}; sleep 600 & echo $! > {tmp_path}/pid; exit 3"
    line = ["bash", "-c", f"[ -e {once} ] || {{ {first}; }}; {' '.join(trainer())}"]
    done = run(command(tmp_path, "--act", then=line, policy=SOON), tmp_path)
    assert done.code == 0, done.err.decode()
    assert len(done.of("attempt")) == 2
    assert not is_alive(int((tmp_path / "pid").read_text()))
