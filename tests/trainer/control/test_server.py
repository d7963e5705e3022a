# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The control socket of a running wrapper: status, stop, restart in place, and bad callers."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.runs.wrapper_runs import (
    LIMIT_SECONDS,
    ask,
    attempt,
    child_pid,
    descendants,
    environ,
    is_alive,
    log,
    python,
    running,
)
from support.waiting import until

FOREVER = ["sh", "-c", "echo ready; while :; do sleep 0.1; done"]
SAVES = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "launcher":
    ranks = [subprocess.Popen([sys.executable, "-c", sys.argv[2], "rank"],
             env={**os.environ, "RANK": str(n), "LOCAL_RANK": str(n)}, start_new_session=True)
             for n in (0, 1)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(99))
    sys.exit(max(each.wait() for each in ranks))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
os.write(1, b"saved " + os.environ["RANK"].encode() + b"\\n")
"""


def ready(directory: Path, times: int = 1) -> None:
    path = directory / "trainer.log"
    until(lambda: path.exists() and path.read_bytes().count(b"ready") >= times)


def test_it_reports_its_state(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER):
        ready(tmp_path)
        # The bytes are in the log a moment before the process that passed them on has counted them,
        # and perhaps before the wrapper has noted whose they are.
        answer = until(lambda: _counted(ask(str(tmp_path), {"op": "status"})))
        assert answer["ok"] is True
        assert (answer["is_running"], answer["mode"], answer["stopping"]) == (True, "observe", None)
        assert answer["pid"] == child_pid(tmp_path)
        assert answer["output"]["printed_bytes"] == 6
        assert answer["output"]["unwritten_bytes"] == 0


def _counted(status: dict[str, Any]) -> dict[str, Any] | None:
    return status if "pid" in status and status["output"]["printed_bytes"] else None


def test_a_stop_ends_the_command_and_says_why(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER) as wrapper:
        ready(tmp_path)
        request = {"op": "stop", "grace_seconds": 10, "save": False, "reason": "a test"}
        assert ask(str(tmp_path), request)["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 143
    ended = attempt(tmp_path)["exit"]
    assert (ended["signal"], ended["asked"]) == (15, True)
    assert ask(str(tmp_path), {"op": "status"})["error"] == "there is no wrapper: no control socket"


def test_a_stop_kills_after_its_grace(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    with running(tmp_path, "sh", "-c", stubborn) as wrapper:
        ready(tmp_path)
        below = descendants(wrapper.pid)
        assert ask(str(tmp_path), {"op": "stop", "grace_seconds": 0.2})["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 137
        until(lambda: not any(map(is_alive, below)))


def test_a_stop_with_a_save_asks_the_ranks_and_not_their_launcher(tmp_path: Path) -> None:
    with running(tmp_path, *python(SAVES, "launcher", SAVES)) as wrapper:
        ready(tmp_path, 2)
        request = {"op": "stop", "grace_seconds": 100, "save": True, "reason": "drain"}
        assert ask(str(tmp_path), request)["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 0
    assert {b"saved 0", b"saved 1"} <= set(log(tmp_path).splitlines())


RESTARTS = """
import os, subprocess, sys
for n in range(100):
    code = "import time; print('ready', flush=True); time.sleep(60)"
    subprocess.run([sys.executable, "-c", code], start_new_session=True,
                   env={**os.environ, "RANK": "0", "LOCAL_RANK": "0"})
"""


def test_a_launcher_that_starts_its_ranks_again_is_asked_too(tmp_path: Path) -> None:
    with running(tmp_path, *python(RESTARTS)) as wrapper:
        ready(tmp_path)
        request = {"op": "stop", "grace_seconds": 60, "save": True}
        assert ask(str(tmp_path), request)["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 143
        until(lambda: not descendants(wrapper.pid))
    assert log(tmp_path).count(b"ready") <= 2


def test_a_stopped_rank_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    code = "import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    with running(tmp_path, *python(code)) as wrapper:
        ready(tmp_path)
        assert ask(str(tmp_path), {"op": "stop", "grace_seconds": 0.2})["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 137


def test_a_restart_in_place_is_a_new_attempt(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER, options=["--act"]) as wrapper:
        ready(tmp_path)
        first = child_pid(tmp_path)
        answer = ask(str(tmp_path), {"op": "restart", "grace_seconds": 5, "reason": "a test"})
        assert answer["ok"] is True
        ready(tmp_path, 2)
        until(lambda: child_pid(tmp_path) != first)  # a thread writes who it is
        assert not is_alive(first)
        begins = attempt(tmp_path)["log"]
        assert begins["inode"] == (tmp_path / "trainer.log").stat().st_ino
        assert log(tmp_path)[begins["bytes"] :] == b"ready\n", "where the second attempt begins"
        assert wrapper.poll() is None
        assert ask(str(tmp_path), {"op": "stop", "grace_seconds": 5})["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 143


def test_observing_refuses_a_restart(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER):
        ready(tmp_path)
        answer = ask(str(tmp_path), {"op": "restart"})
        refused = {"ok": False, "error": "a restart in place needs --act", "kind": "observing"}
        assert answer == refused


BAD: list[tuple[Any, str]] = [
    ({}, "unknown op"),
    ({"op": "delete"}, "unknown op"),
    ({"op": "stop", "grace_seconds": -1}, "grace_seconds must be"),
    ({"op": "stop", "grace_seconds": "soon"}, "grace_seconds must be"),
    ({"op": "stop", "reason": 7}, "reason must be a text"),
    ({"op": "dump", "id": "../../etc"}, "not a name for a dump"),
    ({"op": "dump", "seconds": 1e9}, "seconds must be"),
]


def test_a_bad_request_is_answered_and_harms_nothing(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER) as wrapper:
        ready(tmp_path)
        for request, why in BAD:
            answer = ask(str(tmp_path), request)
            assert answer["ok"] is False
            assert why in answer["error"]
        assert b"not JSON" in raw(tmp_path, b"stop it\n")
        assert b"not JSON" in raw(tmp_path, b"\xff\xfe{}\n")
        assert b"not JSON" in raw(tmp_path, b"[" * 50_000 + b"\n")
        assert b"not an object" in raw(tmp_path, b"[]\n")
        assert b"too long" in raw(tmp_path, b"x" * 70_000)
        assert raw(tmp_path, b"") == b""
        assert wrapper.poll() is None
        assert ask(str(tmp_path), {"op": "status"})["ok"] is True


def test_several_requests_may_come_at_once(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER):
        ready(tmp_path)
        answers = raw(tmp_path, b'{"op": "status"}\n{"op": "none"}\n', 2)
        assert [b'"ok": true' in each for each in answers.splitlines()] == [True, False]


def test_a_folder_with_a_very_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["x" * 60] * 4)
    with running(deep, *FOREVER) as wrapper:
        ready(deep)
        assert ask(str(deep), {"op": "stop", "grace_seconds": 5})["ok"] is True
        assert wrapper.wait(LIMIT_SECONDS) == 143


def test_a_socket_that_a_dead_wrapper_left_is_replaced(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER) as wrapper:
        ready(tmp_path)
        first = child_pid(tmp_path)
        wrapper.kill()
        wrapper.wait(LIMIT_SECONDS)
        assert ask(str(tmp_path), {"op": "status"})["error"] == "the wrapper has ended"
        with running(tmp_path, *FOREVER):
            until(lambda: ask(str(tmp_path), {"op": "status"}).get("pid") not in (None, first))
        subprocess.run(["kill", "-9", str(first)], check=False)


@pytest.mark.parametrize("timeout", [0.01, 0.3])
def test_the_client_does_not_wait_for_ever(tmp_path: Path, timeout: float) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "control"))
        server.listen()
        answer = ask(str(tmp_path), {"op": "status"}, timeout)
    assert answer == {"ok": False, "error": f"no answer within {timeout:g} s"}


def test_the_client_says_what_it_cannot_read(tmp_path: Path) -> None:
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n"
        "print(flush=True); c, _ = s.accept(); c.recv(99); c.sendall(b'hello\\n')"
    )
    words = python(code, str(tmp_path / "control"))
    with subprocess.Popen(words, env=environ(), stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert ask(str(tmp_path), {"op": "status"})["error"] == "the answer cannot be read"


def raw(directory: Path, data: bytes, answers: int = 1) -> bytes:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(LIMIT_SECONDS)
        caller.connect(str(directory / "control"))
        caller.sendall(data)
        if not data:
            caller.shutdown(socket.SHUT_WR)
        got = b""
        while got.count(b"\n") < answers:
            chunk = caller.recv(1 << 16)
            if not chunk:
                break
            got += chunk
    return got
