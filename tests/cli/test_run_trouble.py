# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run` when things go wrong around it: signals, kills, disks, lost readers, floods."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from support.runs.live_runs import (
    HANGS,
    PATIENCE,
    Running,
    command,
    environment,
    left_behind,
    run,
    started,
    trainer,
)
from support.runs.wrapper_runs import descendants, is_alive
from support.waiting import until

pytestmark = pytest.mark.timeout(400)
LONG = ("--train-iters", "100000", "--step-seconds", "0.05")
FLOOD = """
import sys
sys.path.insert(0, sys.argv[1])
from support.runs.printing_trainer import print_line
block = b"words of no meaning, and very many of them\\n" * 10000
for step in range(1, 101):
    sys.stdout.buffer.write(block)
    sys.stdout.flush()
    print_line(step, 100, 0.01, False)
print("[after training is done] datetime: 2026-11-15 09:00:10 ")
"""


HELD_AT_ITS_START = """
import os, time
from pathlib import Path
folder = Path(__file__).parent
if not (folder / "gate").exists():
    (folder / "held").write_text(f"{os.getpid()}\\n")
while not (folder / "gate").exists(): time.sleep(0.01)
"""


def held(folder: Path, *more: str) -> list[str]:
    """It trains for as long as a busy machine needs, and is done soon after `let_go`."""
    flags = ("--train-iters", "400", "--step-seconds", "0.2", "--hurry", str(folder / "hurry"))
    return trainer(*flags, *more)


def let_go(folder: Path) -> None:
    (folder / "hurry").touch()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_run_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(command(tmp_path, "--grace", "5", then=trainer(*LONG)), tmp_path) as running:
        known = running.starts()
        running.process.send_signal(number)
        ended = running.ends()
        assert ended.code == 128 + number
        assert not is_alive(known["pid"])
        assert left_behind(tmp_path) == []
    assert ended.of("end")[0]["summary"] == "interrupted"
    assert ended.story["is_over"] is True
    assert ended.of("incident") == [], "what we ended ourselves is no incident"


def test_an_interrupt_before_the_command_runs_leaves_nothing_behind(tmp_path: Path) -> None:
    with started(command(tmp_path, "--grace", "1", then=trainer(*LONG)), tmp_path) as running:
        until(lambda: running.said.read_bytes())
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 130
        assert left_behind(tmp_path) == []


def test_a_second_interrupt_kills_who_does_not_want_to_hear(tmp_path: Path) -> None:
    line = trainer(*LONG, "--then", "deaf", "--at", "2")
    with started(command(tmp_path, "--grace", "600", then=line), tmp_path) as running:
        running.starts()
        log = running.folder / "volume" / "trainer.log"
        until(lambda: b"iteration        3/" in log.read_bytes())
        running.process.send_signal(signal.SIGTERM)
        until(lambda: b"ending the run" in running.said.read_bytes())
        running.process.send_signal(signal.SIGTERM)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 143
        assert left_behind(tmp_path) == []
    assert b"Traceback" not in running.said.read_bytes()


def test_training_goes_on_when_the_watcher_is_killed(tmp_path: Path) -> None:
    with started(command(tmp_path, then=held(tmp_path)), tmp_path) as running:
        running.starts()
        running.process.kill()
        running.process.wait(PATIENCE)
        let_go(tmp_path)
        until(lambda: running.attempt.get("exit"))
        assert running.attempt["exit"]["code"] == 0
        log = running.folder / "volume" / "trainer.log"
        until(lambda: b"iteration      400/" in log.read_bytes())


def kill_wrapper(running: Running) -> None:
    known = running.starts()
    os.kill(known["wrapper_pid"], signal.SIGKILL)
    until(lambda: not is_alive(known["wrapper_pid"]))
    assert is_alive(known["pid"])


@pytest.mark.parametrize("code", [0, 9])
def test_training_goes_on_when_the_wrapper_is_killed_and_its_end_is_seen(
    tmp_path: Path, code: int
) -> None:
    line = held(tmp_path, "--exit-code", str(code))
    with started(command(tmp_path, then=line), tmp_path) as running:
        kill_wrapper(running)
        running.says("mwatch-run is gone")
        let_go(tmp_path)
        ended = running.ends()
    assert ended.code == code, ended.err.decode()
    assert any("mwatch-run is gone" in each["summary"] for each in ended.of("note"))


def test_a_wrapper_that_is_killed_before_it_starts_the_command_is_started_again(
    tmp_path: Path,
) -> None:
    """Held while Python starts: it has written nothing when it is killed."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HELD_AT_ITS_START)
    given = environment()
    given["PYTHONPATH"] = f"{site}{os.pathsep}{given['PYTHONPATH']}"
    line = trainer("--train-iters", "5")
    with started(command(tmp_path, then=line), tmp_path, given) as running:
        until(lambda: (site / "held").read_text().endswith("\n"), ignoring=(FileNotFoundError,))
        wrapper = int((site / "held").read_text())
        assert wrapper in descendants(running.process.pid)
        assert running.attempt == {}
        os.kill(wrapper, signal.SIGKILL)
        (site / "gate").touch()
        ended = running.ends()
    assert ended.code == 0, ended.err.decode()
    assert any("before it started the command" in each["summary"] for each in ended.of("note"))
    assert ended.attempt["exit"]["code"] == 0


def test_an_interrupt_ends_a_training_that_has_lost_its_wrapper(tmp_path: Path) -> None:
    line = trainer(*LONG)
    with started(command(tmp_path, "--grace", "1", then=line), tmp_path) as running:
        kill_wrapper(running)
        until(lambda: b"is gone" in running.said.read_bytes())
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 130
        assert left_behind(tmp_path) == []


def test_acting_brings_back_what_dies_without_its_wrapper(tmp_path: Path) -> None:
    line = held(tmp_path, "--save", "ckpt", "--load", "ckpt")
    with started(command(tmp_path, "--act", then=line), tmp_path) as running:
        kill_wrapper(running)
        os.kill(running.attempt["pid"], signal.SIGKILL)
        let_go(tmp_path)
        ended = running.ends()
    assert ended.code == 0, ended.err.decode()
    assert [each["attempt"] for each in ended.of("attempt")] == [1, 2]
    assert ended.of("incident")[0]["cause"] == "killed"


def test_acting_gives_way_to_a_newer_attempt_and_does_not_come_back(tmp_path: Path) -> None:
    """Another `mwatch run` has begun in the same save folder."""
    line = trainer(*LONG, "--save", "ckpt", "--load", "ckpt")
    with started(command(tmp_path, "--act", then=line), tmp_path) as running:
        running.starts()
        file = tmp_path / "ckpt" / ".mwatch" / "timeline.json"
        until(file.exists)
        newer = file.with_name("newer")
        newer.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"attempt": 99}))
        newer.replace(file)  # at once, as a wrapper does it
        ended = running.ends()
        assert left_behind(tmp_path) == []
    assert ended.code == 203, ended.err.decode()
    assert len(ended.of("attempt")) == 1
    assert "99" in ended.of("end")[0]["summary"]


def test_acting_does_not_start_where_its_past_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "ckpt" / ".mwatch").mkdir(parents=True)
    (tmp_path / "ckpt" / ".mwatch" / "timeline.json").write_text("{ half")
    line = trainer("--save", "ckpt", "--load", "ckpt")
    ended = run(command(tmp_path, "--act", then=line), tmp_path)
    assert ended.code == 93, ended.err.decode()
    assert "timeline.json" in ended.of("end")[0]["summary"]
    assert ended.out == b""


def test_a_watcher_that_was_stopped_does_not_blame_the_trainer(tmp_path: Path) -> None:
    """Ctrl-Z: after `fg` it looks at a silence that it has made itself."""
    line = trainer("--train-iters", "320", "--step-seconds", "0.03")
    with started(command(tmp_path, "--act", then=line, policy=HANGS), tmp_path) as running:
        running.starts()
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(6.5)
        running.process.send_signal(signal.SIGCONT)
        ended = running.ends()
    assert ended.code == 0, ended.err.decode()
    assert len(ended.of("attempt")) == 1
    assert ended.of("incident") == []


def test_training_goes_on_when_nobody_reads_what_is_reported(tmp_path: Path) -> None:
    """`mwatch run ... 2>&1 | head -1`"""
    reading, writing = os.pipe()
    line = command(tmp_path, then=trainer("--train-iters", "40", "--then", "kill"))
    process = subprocess.Popen(
        line, env=environment(), cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=writing,
        stderr=writing,
    )  # fmt: skip
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    assert process.wait(PATIENCE) == 137, "the code of the command"
    attempt = json.loads((tmp_path / "runs/r/volume/attempt.json").read_text("utf-8"))
    assert attempt["exit"]["signal"] == signal.SIGKILL
    story = json.loads((tmp_path / "runs/r/story.json").read_text("utf-8"))["story"]
    assert (story["is_over"], story["verdict"]["cause"]) == (True, "killed")


def test_standard_streams_that_are_closed_are_no_reason_to_fail(tmp_path: Path) -> None:
    words = command(tmp_path, then=trainer("--train-iters", "3"), says="--plain")
    line = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), timeout=PATIENCE, check=False)
    assert done.returncode == 0


def test_what_is_given_on_standard_input_and_other_files_reaches_the_command(
    tmp_path: Path,
) -> None:
    """`mwatch run -- train --config <(make-config) < data`"""
    reading, writing = os.pipe()
    os.write(writing, b"by another file\n")
    os.close(writing)
    done = subprocess.run(
        command(tmp_path, then=["cat", "-", f"/dev/fd/{reading}"]), input=b"by stdin\n",
        capture_output=True, timeout=PATIENCE, check=False, cwd=tmp_path, env=environment(),
        pass_fds=[reading],
    )  # fmt: skip
    os.close(reading)
    assert done.stdout == b"by stdin\nby another file\n"


def test_a_run_folder_that_is_deleted_is_reported_and_training_goes_on(tmp_path: Path) -> None:
    with started(command(tmp_path, then=held(tmp_path)), tmp_path) as running:
        running.starts()
        until(lambda: is_replaced_by_a_file(running.folder, tmp_path))
        let_go(tmp_path)
        code = running.process.wait(PATIENCE)
    assert code == 0
    said = running.said.read_text("utf-8")
    assert "Traceback" not in said
    assert "cannot write" in said


def is_replaced_by_a_file(folder: Path, aside: Path) -> bool:
    """Deleted, and it cannot be made again. Renamed first: nobody can put a file into it then."""
    deleted = aside / f"deleted-{time.monotonic_ns()}"
    with suppress(FileNotFoundError, NotADirectoryError):
        folder.rename(deleted)
    shutil.rmtree(deleted, ignore_errors=True)
    with suppress(FileExistsError):  # somebody has made a folder meanwhile
        folder.touch(exist_ok=False)
    return folder.is_file()


def run_on_a_full_disk(folder: Path, line: list[str]) -> subprocess.CompletedProcess[bytes]:
    """A limit on the size of files: nothing can be written beyond it."""
    return subprocess.run(
        line, capture_output=True, timeout=PATIENCE, check=False, cwd=folder, env=environment(),
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )  # fmt: skip


def test_a_disk_that_is_full_is_reported_and_training_comes_to_its_end(tmp_path: Path) -> None:
    line = command(tmp_path, then=trainer("--train-iters", "60"))
    done = run_on_a_full_disk(tmp_path, line)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.count(b"] iteration") == 60
    assert b"Traceback" not in done.stderr
    assert b"cannot write" in done.stderr


def test_acting_does_not_restart_what_has_finished_unnoticed(tmp_path: Path) -> None:
    """The log has no room for the last lines, and there is no probe: only the wrapper knows."""
    line = command(tmp_path, "--act", "--no-probe", then=trainer("--train-iters", "60"))
    done = run_on_a_full_disk(tmp_path, line)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.count(b'"event": "attempt"') == 1
    assert b"training finished" in done.stderr


def test_acting_on_a_full_disk_ends_in_words_and_without_leftovers(tmp_path: Path) -> None:
    """The decision cannot be written: nothing must be started without it."""
    line = command(tmp_path, "--act", then=trainer(*LONG))
    with started(line, tmp_path) as running:
        known = running.starts()
        (running.folder / "volume" / "decision.json").mkdir()
        os.kill(known["pid"], signal.SIGKILL)
        until(lambda: b"cannot start yet" in running.said.read_bytes())
        assert len(running.attempt) and running.attempt["attempt"] == 1
        (running.folder / "volume" / "decision.json").rmdir()
        until(lambda: running.attempt["attempt"] == 2)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) == 130
        assert left_behind(tmp_path) == []


def test_a_flood_of_output_is_passed_on_and_its_end_is_understood(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FLOOD, str(Path(__file__).resolve().parents[1])]
    line = command(tmp_path, then=words)
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            line, stdout=out, stderr=subprocess.PIPE, timeout=PATIENCE, check=False, cwd=tmp_path,
            env=environment(),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "out").stat().st_size > 40 << 20
    story = json.loads((tmp_path / "runs/r/story.json").read_text("utf-8"))["story"]
    assert (story["iteration"], story["verdict"]["cause"]) == (100, "finished")


def test_last_words_without_an_end_are_noticed(tmp_path: Path) -> None:
    ended = run(command(tmp_path, then=trainer("--then", "unfinished")), tmp_path)
    assert ended.code == 3
    assert ended.story["verdict"]["cause"] in ("crash", "unknown", "user_error")
    log = (ended.folder / "volume" / "trainer.log").read_bytes()
    assert b"it ends in the middle of a" in log


def test_ends_of_other_runs_in_the_output_end_nothing(tmp_path: Path) -> None:
    """The command prints once more than a whole report of a crash, is silent a while, goes on."""
    flags = ["--train-iters", "40", "--step-seconds", "0.1", "--then", "quote", "--at", "20"]
    ended = run(command(tmp_path, "--act", then=trainer(*flags)), tmp_path)
    assert ended.code == 0 and ended.of("restart") == [] and ended.of("incident") == []
    assert len(ended.story["attempts"]) == 1


def test_training_that_says_done_too_early_and_is_killed_comes_back(tmp_path: Path) -> None:
    flags = ["--train-iters", "40", "--then", "done,kill", "--at", "20"]
    flags += ["--state", str(tmp_path / "once")]
    ended = run(command(tmp_path, "--act", then=trainer(*flags)), tmp_path)
    assert ended.code == 0 and len(ended.story["attempts"]) == 2
