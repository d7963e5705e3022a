# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Signals, exits and orphans: as without mwatch, and nothing left behind where an end was asked."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.runs.wrapper_runs import (
    LIMIT_SECONDS,
    attempt,
    child_pid,
    command,
    descendants,
    environ,
    is_alive,
    isolation,
    kill,
    log,
    python,
    run,
    running,
)
from support.waiting import until

TELLS = """
import signal, sys, time
def tell(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM: sys.exit(7)
for each in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT,
             signal.SIGWINCH, signal.SIGTERM):
    signal.signal(each, tell)
print('ready', flush=True)
while True: time.sleep(1)
"""
STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("code", [0, 1, 2, 16, 93, 137, 255])
def test_the_exit_code_is_the_commands_own(tmp_path: Path, code: int) -> None:
    assert run(tmp_path, "sh", "-c", f"exit {code}").code == code
    ended = attempt(tmp_path)["exit"]
    assert (ended["code"], ended["signal"], ended["returned"]) == (code, None, code)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT])
def test_an_end_by_a_signal_is_reported_as_a_shell_reports_it(tmp_path: Path, number: int) -> None:
    assert run(tmp_path, "sh", "-c", f"kill -{int(number)} $$").code == 128 + number
    ended = attempt(tmp_path)["exit"]
    assert (ended["code"], ended["signal"], ended["asked"]) == (None, number, False)


def test_a_command_that_is_not_there_is_127_and_one_that_cannot_run_126(tmp_path: Path) -> None:
    plain = environ(PATH="/usr/bin:/bin")
    ended = run(tmp_path, "no-such-command-at-all", env=plain)
    assert (ended.code, ended.err) == (
        127,
        b"mwatch-run: no-such-command-at-all: no such command\n",
    )
    (tmp_path / "text").write_text("x")
    ended = run(tmp_path, str(tmp_path / "text"))
    assert ended.code == 126
    assert b"Permission denied" in ended.err
    found = attempt(tmp_path)
    assert (found["pid"], found["exit"]["returned"]) == (None, 126)


def test_arguments_and_files_reach_the_command_byte_for_byte(tmp_path: Path) -> None:
    odd = ["--", "-x", "", "a b", "\udcff\udc80", "ünï", "--dir", "$HOME", "*"]
    ended = run(
        tmp_path, *python("import sys, os; print(list(map(os.fsencode, sys.argv[1:])))", *odd)
    )
    assert ended.out.decode().strip() == str(list(map(os.fsencode, odd)))
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    os.write(writing, b"through")
    os.close(writing)
    words = command(
        *python(f"import os; print(os.read({reading}, 99))"), options=["--no-node-facts"]
    )
    done = subprocess.run(
        words,
        env=environ(),
        close_fds=False,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    os.close(reading)
    assert done.stdout == b"b'through'\n"


def test_the_command_leads_its_own_session_and_has_default_signals(tmp_path: Path) -> None:
    code = "import os; print(os.getsid(0) == os.getpid()); print(open('/proc/self/status').read())"
    out = run(tmp_path, *python(code)).out
    assert out.startswith(b"True\n")
    python_itself = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    before = _ignored(Path("/proc/self/status").read_bytes())
    assert _ignored(out) & ~(python_itself | before) == 0
    assert b"SigBlk:\t0000000000000000" in out


def _ignored(status: bytes) -> int:
    (line,) = [each for each in status.split(b"\n") if each.startswith(b"SigIgn")]
    return int(line.split()[1], 16)


def test_what_was_ignored_before_stays_ignored(tmp_path: Path) -> None:
    words = command("sh", "-c", "kill -HUP $$; echo alive", options=["--dir", str(tmp_path)])
    done = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words],
        env=environ(),
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stdout == b"alive\n"


def test_signals_are_passed_on_in_order(tmp_path: Path) -> None:
    names = ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGQUIT", "SIGWINCH", "SIGTERM"]
    with running(tmp_path, *python(TELLS)) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == b"ready\n"
        for name in names:
            wrapper.send_signal(signal.Signals[name])
            assert wrapper.stdout.readline().decode().strip() == name
        assert wrapper.wait(LIMIT_SECONDS) == 7
    ended = attempt(tmp_path)["exit"]
    assert (ended["code"], ended["asked"]) == (7, True)


def test_after_the_grace_everything_is_killed(tmp_path: Path) -> None:
    text = f"setsid sh -c '{STUBBORN.replace(chr(39), chr(34))}' & {STUBBORN}"
    with running(tmp_path, "bash", "-c", text, options=["--grace", "0.3"]) as wrapper:
        until(lambda: _logged(tmp_path).count(b"ready") == 2)
        below = descendants(child_pid(tmp_path))
        wrapper.terminate()
        assert wrapper.wait(LIMIT_SECONDS) == 137
        assert below
        until(lambda: not any(map(is_alive, below)))


def test_while_observing_nobody_is_killed_without_a_grace(tmp_path: Path) -> None:
    with running(tmp_path, "sh", "-c", STUBBORN) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == b"ready\n"
        wrapper.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            wrapper.wait(0.5)
        kill(child_pid(tmp_path))
        assert wrapper.wait(LIMIT_SECONDS) == 137


def test_acting_ends_what_the_command_left_behind(tmp_path: Path) -> None:
    text = "setsid sleep 60 & echo $!; exit 3"
    with running(tmp_path, "bash", "-c", text, options=["--act"]) as wrapper:
        assert wrapper.wait(LIMIT_SECONDS) != 0
        assert wrapper.stdout is not None
        assert not is_alive(int(wrapper.stdout.readline()))


def test_observing_leaves_a_daemon_alone_and_does_not_wait_for_it(tmp_path: Path) -> None:
    text = "(trap '' HUP; sleep 60) & echo $!; exit 3"
    with running(tmp_path, "bash", "-c", text) as wrapper:
        assert wrapper.wait(LIMIT_SECONDS) == 3
        assert wrapper.stdout is not None
        daemon = int(wrapper.stdout.readline())
        assert is_alive(daemon)
        for each in (daemon, *descendants(daemon)):
            kill(each)


def test_orphans_are_reaped(tmp_path: Path) -> None:
    text = "for n in 1 2 3 4 5; do (sh -c 'exit 0' & exec true); done; echo ready; sleep 60"
    with running(tmp_path, "bash", "-c", text) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline() == b"ready\n"
        until(lambda: not _zombies(wrapper.pid))
        wrapper.terminate()
        assert wrapper.wait(LIMIT_SECONDS) == 143


KEYBOARD = """
(trap 'echo inner; exit' INT; echo ready; while :; do sleep 0.05; done) &
trap 'echo outer; wait; exit 5' INT
echo ready
while :; do sleep 0.05; done
"""


def test_ctrl_c_reaches_every_process_of_the_command(tmp_path: Path) -> None:
    words = command("bash", "-c", KEYBOARD, options=["--no-node-facts", "--dir", str(tmp_path)])
    pid, terminal = pty.fork()
    if not pid:
        os.execve(sys.executable, words, environ())
    try:
        until(lambda: _logged(tmp_path).count(b"ready") == 2)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
    finally:
        kill(pid)
        os.close(terminal)
    assert os.WEXITSTATUS(status) == 5
    assert {b"inner", b"outer"} <= set(_logged(tmp_path).split())


FIRST = """
(sh -c 'sleep 0.2' & exec true)
trap 'echo term; exit 6' TERM
echo ready
while :; do sleep 0.05; done
"""


def test_it_works_as_the_first_process_of_a_container(tmp_path: Path) -> None:
    isolated = isolation()
    words = command("bash", "-c", FIRST, options=["--no-node-facts", "--dir", str(tmp_path)])
    wrapper = subprocess.Popen(
        [*isolated, *words], env=environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline().startswith(b"ready")
        until((tmp_path / "attempt.json").exists)  # the command may be quicker than the file
        assert attempt(tmp_path)["wrapper_pid"] == 1
        (first,) = _children(wrapper.pid)
        until(lambda: not _zombies(first))
        kill(first, signal.SIGTERM)
        out, err = wrapper.communicate(timeout=LIMIT_SECONDS)
    finally:
        below = descendants(wrapper.pid) if wrapper.poll() is None else []
        for pid in below:
            kill(pid)
        wrapper.kill()
    assert (wrapper.returncode, out, err) == (6, b"term\n", b"")


def test_a_signal_before_the_start_ends_the_wait(tmp_path: Path) -> None:
    decision: dict[str, Any] = {
        "version": 1,
        "attempt": 1,
        "resume_from": None,
        "from_beginning": False,
    }
    decision.update(not_before=time.time() + 600, reason="wait", rollbacks=[], quarantine=None)
    (tmp_path / "decision.json").write_text(json.dumps(decision))
    save = tmp_path / "save"
    save.mkdir()
    words = python("print('never')", "--save", str(save))
    with running(tmp_path, *words, options=["--act", "--checkpoints", str(save)]) as wrapper:
        until(lambda: (tmp_path / "control").exists())
        wrapper.terminate()
        out, _ = wrapper.communicate(timeout=LIMIT_SECONDS)
    assert (wrapper.returncode, out) == (143, b"")
    assert attempt(tmp_path)["exit"]["reason"] == "stopped before the start: SIGTERM"


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _zombies(pid: int) -> list[int]:
    states = {each: Path(f"/proc/{each}/stat") for each in descendants(pid)}
    return [each for each, path in states.items() if path.exists() and b") Z " in path.read_bytes()]


def _logged(directory: Path) -> bytes:
    try:
        return log(directory)
    except OSError:
        return b""
