# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Trouble that is not the trainer's: no files left, a full terminal, a newer attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.runs.wrapper_runs import (
    LIMIT_SECONDS,
    ask,
    attempt,
    child_pid,
    command,
    descendants,
    environ,
    helpers,
    is_alive,
    python,
    running,
)
from support.waiting import until


@pytest.mark.parametrize("files", [4, 6, 8, 10, 12, 14, 16, 18, 20, 24])
def test_without_open_files_to_spare_the_command_runs_all_the_same(
    tmp_path: Path, files: int
) -> None:
    words = command("sh", "-c", "echo ran; exit 9", options=["--dir", str(tmp_path)])
    shell = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *words]
    bare = [
        "sh",
        "-c",
        f'ulimit -n {files}; exec "$@"',
        "sh",
        words[0],
        "-c",
        "import mwatch_trainer",
    ]
    if subprocess.run(bare, env=environ(), capture_output=True, check=False).returncode:
        pytest.skip("not even Python starts with so few")
    done = subprocess.run(
        shell, env=environ(), capture_output=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (9, b"ran\n")
    assert b"Traceback" not in done.stderr


def test_where_no_pump_can_be_had_the_wrapper_carries_the_output_itself(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.executable = '/bin/false'\nfrom mwatch_trainer.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    printer = "for n in range(20000): print('%06d' % n)"
    options = ["--dir", str(tmp_path), "--", *python(printer)]
    done = subprocess.run(
        python(code, *options),
        env=environ(),
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"".join(b"%06d\n" % n for n in range(20000))
    assert (tmp_path / "trainer.log").read_bytes() == done.stdout


def test_a_trainer_whose_wrapper_was_killed_ends_before_the_next_attempt(tmp_path: Path) -> None:
    code = "import os\nprint('pid', os.getpid(), flush=True)\nos.setsid()\n" + STEPS
    words = ["sh", "-c", '"$@" & wait', "sh", *python(code)]
    with running(tmp_path, *words, options=["--act"]) as first:
        assert first.stdout is not None
        rank = int(first.stdout.readline().split()[1])
        child_pid(tmp_path)
        first.kill()
        first.wait(LIMIT_SECONDS)
        assert is_alive(rank)
        with running(tmp_path, *words, options=["--act"]) as second:
            assert second.stdout is not None
            second.stdout.readline()
            assert not is_alive(rank)
            assert ask(str(tmp_path), {"op": "stop", "grace_seconds": 5})["ok"] is True
            assert second.wait(LIMIT_SECONDS) >= 128


def test_a_second_wrapper_leaves_the_first_ones_trainer_alone_while_it_lives(
    tmp_path: Path,
) -> None:
    with running(tmp_path, *python(STEPS), options=["--act"]) as first:
        child = child_pid(tmp_path)
        with running(tmp_path, "sh", "-c", "echo second", options=["--act"]) as second:
            assert second.wait(LIMIT_SECONDS) is not None
        assert is_alive(child)
        assert first.poll() is None


STEPS = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.05)"


def test_a_newer_attempt_kills_this_one_at_once(tmp_path: Path) -> None:
    save = tmp_path / "save"
    save.mkdir()
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], 'w'))\n"
    words = [*python(code + STEPS, str(tmp_path / "saved")), "--save", str(save)]
    with running(
        tmp_path / "dir", *words, options=["--act", "--checkpoints", str(save)]
    ) as wrapper:
        child_pid(tmp_path / "dir")
        found = attempt(tmp_path / "dir")
        assert found["save"] == str(save)
        newer = {"version": 1, "attempt": found["attempt"] + 1, "attempts": [], "rollbacks": []}
        file = save / ".mwatch" / "timeline.json"
        file.with_name("newer").write_text(json.dumps({**newer, "quarantine": None}))
        file.with_name("newer").replace(file)  # at once, as a wrapper does it
        assert wrapper.wait(LIMIT_SECONDS) >= 128
    ended = attempt(tmp_path / "dir")["exit"]
    assert ended["signal"] == 9
    assert not (tmp_path / "saved").exists()


def test_a_sink_that_is_stuck_does_not_hold_up_an_asked_end(tmp_path: Path) -> None:
    code = "import os\nprint('ready', flush=True)\nos.write(1, b'x' * 3_000_000)"
    with running(tmp_path, *python(code)) as wrapper:
        below = until(lambda: descendants(wrapper.pid))
        until(lambda: ask(str(tmp_path), {"op": "status"}).get("is_running"))
        assert ask(str(tmp_path), {"op": "stop", "grace_seconds": 0.2})["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) in (137, 143)
        assert wrapper.stdout is not None
        wrapper.stdout.close()
        until(lambda: not any(map(is_alive, below)))


def test_what_is_printed_is_waited_for_as_the_command_would_have(tmp_path: Path) -> None:
    with running(tmp_path, *python("import os; os.write(1, b'x' * 600_000)")) as wrapper:
        until(lambda: _has_no_child(tmp_path))
        with pytest.raises(subprocess.TimeoutExpired):
            wrapper.wait(0.3)
        assert wrapper.stdout is not None
        assert len(wrapper.stdout.read()) == 600_000
        assert wrapper.wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize(
    ("options", "code", "returned"),
    [([], 1, 1), (["--act"], 1, 1), ([], 7, 7), (["--act"], 7, 1)],
)
def test_a_full_disk_is_never_worth_a_restart(
    tmp_path: Path, options: list[str], code: int, returned: int
) -> None:
    """The kernel refuses to write to /dev/full as it does on a full disk."""
    writer = "with open('/dev/full', 'wb', 0) as file: file.write(b'x')"
    shell = ["sh", "-c", f'"$@" || exit {code}', "sh", *python(writer)]
    done = subprocess.run(
        command(*shell, options=["--dir", str(tmp_path), *options]), env=environ(),
        capture_output=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    assert b"[Errno 28]" in done.stderr
    assert done.returncode == returned
    assert attempt(tmp_path)["exit"]["code"] == code


def _has_no_child(directory: Path) -> bool:
    answer = ask(str(directory), {"op": "status"})
    return answer["ok"] and answer.get("pid") is not None and not answer["is_running"]


def test_killed_node_facts_are_started_again(tmp_path: Path) -> None:
    """Without them a rank that is stopped later would look as if all were equal."""
    with running(tmp_path, "sleep", "600", with_node_facts=True) as wrapper:
        first = until(lambda: helpers(wrapper.pid, "gpu.sampler"))
        os.kill(first[0], signal.SIGKILL)
        facts = tmp_path / "node" / "processes.json"
        until(lambda: helpers(wrapper.pid, "gpu.sampler") not in ([], first))
        facts.unlink(missing_ok=True)
        until(facts.exists)
