# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run` as a user starts it: real processes, and a trainer that only prints.

Each run is made once and looked at by several tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from support.builders.attempt import contents
from support.free_ports import free_port
from support.hostile_requests import sweep
from support.runs.live_runs import (
    HANGS,
    PATIENCE,
    Finished,
    command,
    environment,
    left_behind,
    run,
    started,
    trainer,
)
from support.waiting import until

BINARY = (
    "import os; os.write(1, bytes(range(256)) + 'ä→\\n'.encode()); os.write(2, b'\\xff no end')"
)
IMPATIENT = """
[act]
restarts_per_window = 2
backoff_first_seconds = 0.1
backoff_factor = 1.0
"""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Any, Path]:
    """A run with saves that ends with exit code 7, and the same without mwatch."""
    folder = tmp_path_factory.mktemp("observed")
    flags = ["--train-iters", "8", "--exit-code", "7", "--save"]
    bare = subprocess.run(
        trainer(*flags, "ckpt"), capture_output=True, cwd=folder, env=environment(),
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    (folder / "ckpt").rename(folder / "bare")
    return run(command(folder, then=trainer(*flags, "ckpt")), folder), bare, folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Killed while mwatch observes, with the thresholds that are usual."""
    folder = tmp_path_factory.mktemp("killed")
    return run(command(folder, then=trainer("--then", "kill"), policy=""), folder)


@pytest.fixture(scope="module")
def nan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """NaN at 10, checkpoints every four iterations, mwatch acts."""
    folder = tmp_path_factory.mktemp("nan")
    flags = ["--save", "ckpt", "--load", "ckpt", "--then", "nan", "--state", "once"]
    line = trainer(*flags, "--train-iters", "90")
    ended = run(command(folder, "--act", then=line), folder)
    return ended, folder / "ckpt"


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Killed once while mwatch acts."""
    folder = tmp_path_factory.mktemp("returned")
    line = trainer("--then", "kill", "--state", "once", "--save", "ckpt", "--load", "ckpt")
    return run(command(folder, "--act", then=line), folder)


def test_observing_returns_the_exit_code_and_the_output_unchanged(
    observed: tuple[Finished, Any, Path],
) -> None:
    ended, bare, _ = observed
    assert ended.code == bare.returncode == 7
    assert ended.out == bare.stdout


def test_observing_leaves_the_command_and_its_checkpoints_as_they_are(
    observed: tuple[Finished, Any, Path],
) -> None:
    ended, _, folder = observed
    assert ended.attempt["argv"] == ended.attempt["ran"]
    assert ended.attempt["mode"] == "observe"
    with_mwatch, without = contents(folder / "ckpt"), contents(folder / "bare")
    assert with_mwatch == without
    assert not (folder / "ckpt" / ".mwatch").exists()


def test_each_line_that_mwatch_says_is_an_object_of_its_own(
    observed: tuple[Finished, Any, Path],
) -> None:
    ended, _, _ = observed
    for line in ended.err.decode().splitlines():
        assert isinstance(json.loads(line)["event"], str)
    assert ended.said[-1]["event"] == "end"
    assert ended.said[-1]["exit_code"] == 7


def test_the_story_of_the_run_is_there_for_the_report(
    observed: tuple[Finished, Any, Path],
) -> None:
    ended, _, _ = observed
    assert ended.story["is_over"] is True
    assert ended.story["iteration"] == 8
    assert ended.story["mode"] == "observe"


def test_bytes_of_any_kind_pass_through(tmp_path: Path) -> None:
    line = [sys.executable, "-c", BINARY]
    bare = subprocess.run(line, capture_output=True, timeout=PATIENCE, check=False)
    ended = run(command(tmp_path, then=line, says="--plain"), tmp_path)
    assert ended.out == bare.stdout
    assert bare.stderr in ended.err


def test_observing_says_what_would_have_been_done_and_does_not_do_it(killed: Finished) -> None:
    assert killed.code == 137
    (action,) = killed.of("action")
    assert (action["action"], action["is_done"]) == ("restart", False)
    assert len(killed.of("attempt")) == 1


def test_an_incident_leaves_its_record_and_its_evidence(killed: Finished) -> None:
    (record,) = killed.records
    assert (record["cause"], record["action"]) == ("killed", "restart")
    assert record["is_carried_out"] is False
    assert "trainer.log" in record["evidence"]["files"]
    (folder,) = (killed.folder / "incidents").iterdir()
    assert "iteration        9/" in (folder / "trainer.log").read_text("utf-8")
    (incident,) = killed.story["incidents"]
    assert any(each["path"].endswith("trainer.log") for each in incident["files"])


def test_acting_brings_a_killed_run_to_its_end(returned: Finished) -> None:
    assert returned.code == 0, returned.err.decode()
    assert [each["attempt"] for each in returned.of("attempt")] == [1, 2]
    (incident,) = returned.of("incident")
    assert incident["cause"] == "killed"
    assert returned.of("attempt")[1]["resume_from"] == 8
    assert returned.of("end")[0]["exit_code"] == 0
    (record,) = returned.records
    assert record["is_carried_out"] is True
    assert record["times"]["first_new_iteration"] is not None


def test_acting_goes_back_to_the_checkpoint_before_the_numbers_went_bad(
    nan: tuple[Finished, Path],
) -> None:
    ended, save = nan
    assert ended.code == 0, ended.err.decode()
    decision = json.loads((ended.folder / "volume" / "decision.json").read_text("utf-8"))
    assert (decision["attempt"], decision["resume_from"]) == (2, 8)
    (rollback,) = decision["rollbacks"]
    assert (rollback["to_iteration"], rollback["first_bad"]) == (8, 10)
    (record,) = ended.records
    assert (record["cause"], record["checkpoint"]["iteration"]) == ("nan", 8)
    assert ended.attempt["resume_from"] == 8
    assert ended.of("attempt")[1]["resume_from"] == 8
    assert (save / "latest_checkpointed_iteration.txt").read_text() == "88"


def test_the_rollback_is_written_down_beside_the_checkpoints(nan: tuple[Finished, Path]) -> None:
    _, save = nan
    timeline = json.loads((save / ".mwatch" / "timeline.json").read_text("utf-8"))
    assert timeline["attempt"] == 2
    assert [each["resumed_from"] for each in timeline["attempts"]] == [None, 8]
    assert timeline["rollbacks"][0]["to_iteration"] == 8
    assert (save / ".mwatch" / "calibration.json").exists()


def test_acting_finds_a_stopped_process_and_starts_it_anew(tmp_path: Path) -> None:
    line = trainer("--then", "stop", "--state", "once", "--save", "ckpt", "--load", "ckpt")
    ended = run(command(tmp_path, "--act", then=line, policy=HANGS), tmp_path)
    assert ended.code == 0, ended.err.decode()
    assert ended.of("incident")[0]["cause"] == "hang"
    assert "rank 0" in ended.of("incident")[0]["culprit"]
    assert [each["cause"] for each in ended.records] == ["hang"]
    assert left_behind(tmp_path) == []


def test_acting_stops_at_what_only_the_user_can_fix(tmp_path: Path) -> None:
    ended = run(command(tmp_path, "--act", then=trainer("--then", "raise")), tmp_path)
    assert ended.code == 1, ended.err.decode()
    assert len(ended.of("attempt")) == 1
    assert ended.of("action")[0]["action"] == "stop"


def test_acting_gives_up_when_its_restarts_are_used_up(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    line = trainer("--then", "kill", "--at", "6", "--save", kept, "--load", kept)
    ended = run(command(tmp_path, "--act", then=line, policy=IMPATIENT), tmp_path)
    assert ended.code == 93, ended.err.decode()
    assert [each["resume_from"] for each in ended.of("attempt")] == [None, 4, 4]
    assert ended.of("action")[-1]["action"] == "stop"


def test_acting_gives_up_when_a_restart_that_lost_everything_was_in_vain(tmp_path: Path) -> None:
    line = trainer("--then", "kill", "--at", "6", "--step-seconds", "0.2")
    ended = run(command(tmp_path, "--act", then=line), tmp_path)
    assert ended.code == 93, ended.err.decode()
    assert len(ended.of("attempt")) == 2
    assert "lost all progress" in ended.of("action")[-1]["reason"]


def test_acting_does_not_take_an_early_exit_0_for_the_end(tmp_path: Path) -> None:
    line = trainer("--then", "leave", "--state", "once")
    ended = run(command(tmp_path, "--act", then=line), tmp_path)
    assert ended.code == 0, ended.err.decode()
    assert len(ended.of("attempt")) == 2
    assert ended.of("incident")[0]["cause"] == "finished_early"


def test_metrics_are_served_while_it_runs(tmp_path: Path) -> None:
    line = trainer("--train-iters", "100000")
    with started(command(tmp_path, "--port", str(free_port()), then=line), tmp_path) as running:
        until(lambda: "/metrics" in running.said.read_text("utf-8"))
        note = json.loads(running.said.read_text("utf-8").splitlines()[0])
        where = note["summary"].split()[-1]

        def has_iteration() -> bool:
            with urlopen(where, timeout=PATIENCE) as answer:
                return b'mwatch_iteration{run="r"}' in answer.read()

        until(has_iteration)


def fetched(address: str) -> bytes:
    with urlopen(address, timeout=PATIENCE) as answer:
        found: bytes = answer.read()
    return found


@pytest.mark.parametrize("options", [(), ("--no-page",)])
def test_the_first_line_names_the_page_unless_it_is_turned_off(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    port = free_port()
    line = command(tmp_path, "--port", str(port), *options, then=trainer("--train-iters", "100000"))
    with started(line, tmp_path) as running:
        until(lambda: "/metrics" in running.said.read_text("utf-8"))
        first = json.loads(running.said.read_text("utf-8").splitlines()[0])["summary"]
        here = f"http://127.0.0.1:{port}/"
        assert (f"page {here}," in first) is not bool(options)
        if options:
            with pytest.raises(HTTPError, match="404"):
                urlopen(here, timeout=PATIENCE)
        else:
            # A busy run asks to come again (503).
            page = until(lambda: fetched(here), ignoring=(HTTPError,))
            assert b"<h1>r</h1>" in page


def test_no_request_to_any_page_makes_it_fail_or_show_what_it_should_not(tmp_path: Path) -> None:
    port = free_port()
    line = command(tmp_path, "--port", str(port), then=trainer("--train-iters", "100000"))
    with started(line, tmp_path) as running:
        running.says("/metrics")
        assert sweep(port) == []
        assert running.process.poll() is None
        assert b"Traceback" not in running.said.read_bytes()


def test_a_command_that_is_not_there_is_reported_plainly(tmp_path: Path) -> None:
    env = environment(PATH="/usr/bin:/bin")
    ended = run(command(tmp_path, "--act", then=["no-such-program"]), tmp_path, env=env)
    assert ended.code == 127
    assert b"Traceback" not in ended.err
    assert ended.of("end")[0]["summary"] == "no-such-program: no such command"
    assert len(ended.of("attempt")) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--name", "../x", "--", "true"], "--name ../x"),
        (["--policy", "missing.toml", "--", "true"], "missing.toml"),
        (["--port", "99999", "--", "true"], "--port"),
        (["--grace", "-1", "--", "true"], "--grace"),
        ([], "give the training command after --"),
        (
            ["--name", "a", "torchrun", "--nproc-per-node", "8", "my script.py", "--act"],
            "--name a -- torchrun --nproc-per-node 8 'my script.py' --act",
        ),
    ],
)
def test_bad_usage_starts_nothing_and_names_the_fix(
    tmp_path: Path, options: list[str], expected: str
) -> None:
    line = [sys.executable, "-m", "mwatch", "run", "--runs", str(tmp_path / "runs"), *options]
    ended = run(line, tmp_path)
    assert ended.code == 2
    assert expected in ended.err.decode()
    assert b"Traceback" not in ended.err
    assert not (tmp_path / "runs").exists()


def test_a_command_that_trains_nothing_ends_at_once(tmp_path: Path) -> None:
    """Also without `--`, where no word of the command can be taken for an option."""
    line = [each for each in command(tmp_path, then=["true"], says="--plain") if each != "--"]
    # It waits for the last lines of a training only: here that would be for far too long.
    ended = run(line, tmp_path, patches={"mwatch.run.supervisor:_SETTLE_SECONDS": 4 * PATIENCE})
    assert ended.code == 0
    *_, verdict, report, evidence = ended.err.decode().splitlines()
    assert verdict == "mwatch: ended: command finished (exit code 0)"
    assert report == "mwatch: report: mwatch report runs/r"
    assert evidence == "mwatch: evidence: none: there was no incident"


def test_help_says_how_it_is_used(tmp_path: Path) -> None:
    ended = run([sys.executable, "-m", "mwatch", "run", "--help"], tmp_path)
    assert ended.code == 0
    text = ended.out.decode()
    for word in ("--act", "--policy", "--json", "--no-probe", "-- CMD", "mwatch report"):
        assert word in text


def test_the_environment_does_not_make_an_observer_act(tmp_path: Path) -> None:
    env = environment(MWATCH_MODE="act", MWATCH_DIR=str(tmp_path / "elsewhere"))
    line = trainer("--train-iters", "4", "--save", "ckpt", "--load", "ckpt")
    ended = run(command(tmp_path, then=line), tmp_path, env=env)
    assert ended.attempt["mode"] == "observe"
    assert not (tmp_path / "ckpt" / ".mwatch").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_no_probe_means_nothing_inside_the_trainer(tmp_path: Path) -> None:
    ended = run(command(tmp_path, "--no-probe", then=trainer()), tmp_path)
    assert ended.code == 0
    assert not list(ended.folder.glob("volume/probe/*"))
