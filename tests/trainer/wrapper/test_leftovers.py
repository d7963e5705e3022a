# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a command leaves behind: ended before a restart and where an end was asked, else left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.runs.wrapper_runs import (
    LIMIT_SECONDS,
    attempt,
    command,
    environ,
    helpers,
    is_alive,
    isolation,
    kill,
    log,
    running,
)
from support.waiting import until

LINE = " iteration %8d/      60 | elapsed time per iteration (ms): 1.0 | lm loss: 2.0 |"
TRAINING = f"""
import os, sys, time
with open(sys.argv[1] + ".tmp", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
for number in range(1, 61):
    print({LINE!r} % number, flush=True)
    time.sleep(0.2)
open(sys.argv[2], "w").close()
"""


class Background:
    """A training that a script starts in the background."""

    def __init__(self, folder: Path) -> None:
        self._file, self._pid, self._done = folder / "train.py", folder / "pid", folder / "done"
        self._file.write_text(TRAINING)

    def script(self, rest: str, output: str = "") -> list[str]:
        start = f"{sys.executable} {self._file} {self._pid} {self._done} {output} &"
        return ["bash", "-c", f"{start} {rest}"]

    @property
    def pid(self) -> int:
        until(self.has_begun)
        return int(self._pid.read_text())

    def is_done(self) -> bool:
        return self._done.exists()

    def has_begun(self) -> bool:
        return self._pid.exists()


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    made = Background(tmp_path)
    yield made
    _kill_all(tmp_path)


@pytest.mark.parametrize("rest", ["true", "sleep 1.5"])
def test_a_training_in_the_background_is_left_alone(
    tmp_path: Path, background: Background, rest: str
) -> None:
    words = background.script(rest, output=f"> {tmp_path}/log 2>&1")
    with running(tmp_path, *words, options=["--act"], with_node_facts=True) as wrapper:
        until(lambda: helpers(wrapper.pid, "output.pump"))
        ours = [*helpers(wrapper.pid, "output.pump"), *helpers(wrapper.pid, "gpu.sampler")]
        _, err = wrapper.communicate(timeout=LIMIT_SECONDS)
        assert wrapper.returncode == 0
        assert f"still running: {background.pid} (".encode() in err
        assert b"/train.py [" in err
        assert b"); not watched any more\n" in err
        assert err.count(b"\n") == 1
        assert not any(map(is_alive, ours))
    until(background.is_done)
    (left,) = attempt(tmp_path)["exit"]["left"]
    assert left["pid"] == background.pid


def test_a_training_that_prints_on_is_not_an_early_end(
    tmp_path: Path, background: Background
) -> None:
    """It holds the output pipe: the pump stays, or the next line would kill it."""
    words = background.script("sleep 1.5")
    with running(tmp_path, *words, options=["--act"]) as wrapper:
        assert wrapper.wait(LIMIT_SECONDS) == 0
        ended = attempt(tmp_path)["exit"]
        assert ended["reason"].startswith("the command has ended, and its training goes on")
        assert not background.is_done()
        assert wrapper.stdout is not None
        until(background.is_done)
        assert b" 60/" in wrapper.stdout.read()


def test_a_training_that_works_without_a_line_is_not_an_early_end(tmp_path: Path) -> None:
    busy = "import time; until = time.monotonic() + 60\nwhile time.monotonic() < until: pass"
    begin = LINE % 7
    text = f"echo '{begin}'; {sys.executable} -c '{busy}' > /dev/null & echo $!; sleep 1"
    with _ending(tmp_path, text) as (code, pid):
        assert code == 0
        assert is_alive(pid)


def test_a_helper_that_waits_is_ended_before_a_restart(tmp_path: Path) -> None:
    """Exit 0 far from the end: the training itself is gone."""
    text = f"sleep 600 > /dev/null & echo $!; echo '{LINE % 7}'"
    with _ending(tmp_path, text) as (code, pid):
        assert code == 200
        assert not is_alive(pid)


def test_a_helper_that_ends_a_moment_later_is_not_reported(tmp_path: Path) -> None:
    with running(tmp_path, "bash", "-c", "sleep 0.3 & true", options=["--act"]) as wrapper:
        assert wrapper.communicate(timeout=LIMIT_SECONDS) == (b"", b"")
    assert "left" not in attempt(tmp_path)["exit"]


@pytest.mark.parametrize(
    ("how", "code", "is_left"),
    [("exit 3", 201, False), ("kill -9 $$", 137, False), ("exit 127", 127, True)],
)
def test_they_are_ended_where_a_restart_follows(
    tmp_path: Path, how: str, code: int, is_left: bool
) -> None:
    with _ending(tmp_path, f"setsid sleep 600 & echo $!; {how}") as (returned, pid):
        assert returned == code
        assert is_alive(pid) == is_left


def test_they_are_ended_where_an_end_was_asked(tmp_path: Path) -> None:
    text = "trap 'exit 0' TERM; sleep 600 & echo $!; while :; do sleep 0.1; done"
    with running(tmp_path, "bash", "-c", text, options=["--act"]) as wrapper:
        assert wrapper.stdout is not None
        pid = int(wrapper.stdout.readline())
        wrapper.terminate()
        wrapper.wait(LIMIT_SECONDS)
        assert not is_alive(pid)


def test_one_that_floods_the_output_does_not_hold_the_wrapper(tmp_path: Path) -> None:
    text = "(trap '' PIPE HUP; exec yes) & echo $! >&2"
    with (
        open(os.devnull, "wb") as nowhere,
        running(tmp_path, "bash", "-c", text, options=["--act"], stdout=nowhere) as wrapper,
    ):
        assert wrapper.stderr is not None
        pid = int(wrapper.stderr.readline())
        try:
            assert wrapper.wait(LIMIT_SECONDS) == 0
            assert is_alive(pid)
        finally:
            kill(pid)


def test_the_report_is_scrubbed_and_bounded(tmp_path: Path) -> None:
    many = "for n in $(seq 20); do setsid sleep 601 > /dev/null 2>&1 & done"
    server = "(exec -a 'serve --token=abcd1234efgh5678' sleep 602 > /dev/null 2>&1) &"
    text = f"{server} sleep 0.2; {many}; true"
    with running(tmp_path, "bash", "-c", text, options=["--act"]) as wrapper:
        _, err = wrapper.communicate(timeout=LIMIT_SECONDS)
        _kill_all(tmp_path)
    assert len(attempt(tmp_path)["exit"]["left"]) == 8
    assert b"(serve --token=" in err
    assert b" and 13 more; not watched" in err
    assert b"abcd1234" not in err + (tmp_path / "attempt.json").read_bytes()


@pytest.mark.parametrize("rest", ["true", "exit 3"])
def test_in_a_container_nothing_differs_from_the_bare_command(
    tmp_path: Path, background: Background, rest: str
) -> None:
    words = background.script(f"sleep 1.5; {rest}", output=f"> {tmp_path}/log 2>&1")
    main = command(*words, options=["--act", "--no-node-facts", "--dir", str(tmp_path)])
    line = [*isolation(), *main]
    done = subprocess.run(
        line, env=environ(), capture_output=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == ({"true": 0, "exit 3": 201}[rest], b"")
    assert (b"they end with this container" in done.stderr) == (rest == "true")
    assert background.has_begun()
    time.sleep(0.5)
    assert not _found(tmp_path)


def _found(directory: Path) -> list[int]:
    wanted = f"MWATCH_DIR={directory}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def _kill_all(directory: Path) -> None:
    for pid in _found(directory):
        kill(pid)


@contextmanager
def _ending(directory: Path, text: str) -> Iterator[tuple[int, int]]:
    """The exit code of the wrapper, and the process whose id the script prints."""
    with running(directory, "bash", "-c", text, options=["--act"]) as wrapper:
        code = wrapper.wait(LIMIT_SECONDS)
        (pid,) = [int(line) for line in log(directory).splitlines() if line.strip().isdigit()]
        try:
            yield code, pid
        finally:
            kill(pid)
