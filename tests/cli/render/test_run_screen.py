# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched run on a terminal: a real one (a pty), with a real `mwatch run` behind it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mwatch.cli.render.run_screen import RunScreen
from mwatch.model.snapshot.snapshot import Inputs, take
from mwatch.run.assemble import ShownRun
from mwatch.watch.watcher import RunEnd
from support.builders.run import gone_bad, run_folder
from support.forked import ForkedProcess
from support.free_ports import free_port
from support.runs.live_runs import (
    PATIENCE,
    command,
    environment,
    kill_all,
    left_behind,
    start,
    trainer,
)
from support.waiting import until

pytestmark = pytest.mark.timeout(400)
CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
HOSTILE = (
    "import os; os.write(1, b'\\x1b[2J\\x1b]0;owned\\x07evil\\x9b31m\\r\\n' + 'ä→\\n'.encode())"
)
ANY_CHARACTER = rb"(?:[ -\x7f]|[\xc0-\xff][\x80-\xbf]+)"
SHOW_CURSOR = b"\x1b[?25h"
COLUMNS = 100


class Terminal:
    """The side of a pty that a person sits at."""

    def __init__(self, master: int, process: ForkedProcess) -> None:
        self.master, self.process = master, process
        self.seen = b""

    def read(self, seconds: float = 0.1) -> None:
        with suppress(OSError):  # the other side is closed
            if select.select([self.master], [], [], seconds)[0]:
                self.seen += os.read(self.master, 1 << 16)

    def until(self, text: bytes) -> None:
        end = time.monotonic() + PATIENCE
        while re.search(text, self.text) is None:
            assert time.monotonic() < end, f"{text!r} is not in {self.text[-2000:]!r}"
            self.read()

    def ends(self) -> int:
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end
            self.read()
        size = -1
        while size < len(self.seen):  # what it has printed last
            size = len(self.seen)
            self.read()
        return self.process.wait()

    @property
    def text(self) -> bytes:
        return CONTROL.sub(b"", self.seen)

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)


@contextmanager
def on_terminal(
    line: Sequence[str], folder: Path, *, columns: int = COLUMNS, **given: str
) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    env = environment(TERM="xterm", LC_ALL="C.UTF-8")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):  # a test runner may set them
        env.pop(name, None)
    env |= given
    Terminal.resize(Terminal(master, None), 30, columns)  # type: ignore[arg-type]
    process = start(line, [slave] * 3, folder, env, has_terminal=True)
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        kill_all(process, folder)
        with suppress(OSError):
            os.close(master)


def words(folder: Path, *options: str, then: Sequence[str]) -> list[str]:
    """Without --json or --plain, as on a terminal."""
    return [each for each in command(folder, *options, then=then) if each != "--json"]


def test_the_panel_stands_below_the_lines_of_the_trainer(tmp_path: Path) -> None:
    line = words(tmp_path, then=trainer("--train-iters", "60", "--step-seconds", "0.03"))
    with on_terminal(line, tmp_path) as terminal:
        terminal.until(rb"mwatch run r \(observe\)")
        terminal.until(rb"[ \xe2-][^/]* \d+/60 \xc2\xb7 \d+% \xc2\xb7 ETA \d")
        terminal.until(rb"lm loss: 3\.")
        terminal.until(b"s/step")
        terminal.until("lm loss +3\\.\\d+ [▁-█]{2,}".encode())
        terminal.until(rb"GPUs +[^ ]")
        terminal.until(rb"page +not served; ")
        assert terminal.ends() == 0
    *_, verdict, report, evidence = terminal.text.decode().strip().splitlines()
    assert verdict.split(maxsplit=1) == ["verdict", "training is done, iteration 60 (exit code 0)"]
    assert report.split() == ["report", "mwatch", "report", "runs/r"]
    assert evidence.split(maxsplit=1) == ["evidence", "none: there was no incident"]
    assert terminal.seen.rfind(SHOW_CURSOR) > terminal.seen.rfind(b"\x1b[?25l")
    assert terminal.text.count(b"] iteration       33/") == 1, "each line once"


def test_a_terminal_obeys_nothing_that_the_trainer_prints(tmp_path: Path) -> None:
    line = words(tmp_path, then=[sys.executable, "-c", HOSTILE])
    with on_terminal(line, tmp_path) as terminal:
        assert terminal.ends() == 0
    assert b"\x1b[2J" not in terminal.seen
    assert b"\x1b]0;" not in terminal.seen and b"owned" not in terminal.seen
    assert b"evil" in terminal.text, "complete sequences are removed, other characters escaped"
    assert "ä→".encode() in terminal.seen


def test_a_narrow_terminal_gets_no_border_and_every_row(tmp_path: Path) -> None:
    port = free_port()
    line = words(tmp_path, "--port", str(port), then=trainer("--train-iters", "100000"))
    with on_terminal(line, tmp_path, columns=40, NO_COLOR="1") as terminal:
        terminal.until(rb" \d+/100000 \xc2\xb7 \d+%")
        terminal.until(rb"page http://127\.0\.0\.1:%d/ " % port)
        terminal.until(rb"lm loss 3")
        os.write(terminal.master, b"\x03")
        assert terminal.ends() == 130
    assert "╭".encode() not in terminal.seen
    assert re.search(rb"\x1b\[[0-9;]*3[0-7]m", terminal.seen) is None, "no colour"


def test_a_quiet_run_keeps_the_output_of_the_trainer_in_its_log(tmp_path: Path) -> None:
    line = words(tmp_path, "--quiet", then=trainer("--train-iters", "30"))
    with on_terminal(line, tmp_path) as terminal:
        assert terminal.ends() == 0
    log = tmp_path / "runs" / "r" / "volume" / "trainer.log"
    assert b"lm loss: 3" in log.read_bytes()
    assert b"lm loss: 3" not in terminal.text
    assert f"output is in {log.relative_to(tmp_path)} only".encode() in terminal.text
    assert b"training is done, iteration 30" in terminal.text


def test_a_terminal_that_is_stopped_holds_up_neither_trainer_nor_watcher(tmp_path: Path) -> None:
    """Nobody reads the other side, as after Ctrl-S; the trainer prints more than it can hold."""
    code = "print(('x' * 100 + '\\n') * 30_000); open('finished', 'w')"
    line = words(tmp_path, then=[sys.executable, "-c", code])
    with on_terminal(line, tmp_path) as terminal:
        until((tmp_path / "finished").exists, PATIENCE)
        story = tmp_path / "runs" / "r" / "story.json"
        until(lambda: story.exists() and b'"is_over":true' in story.read_bytes(), PATIENCE)
        assert terminal.process.wait(PATIENCE) == 0


def test_the_panel_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    line = words(tmp_path, then=trainer("--train-iters", "100000"))
    with on_terminal(line, tmp_path) as terminal:
        terminal.until("─".encode() * 40)
        terminal.until("╮".encode())
        terminal.resize(20, 60)
        terminal.seen = b""
        terminal.until("╭".encode() + ANY_CHARACTER + b"{58}" + "╮".encode())
        os.write(terminal.master, b"\x03")
        assert terminal.ends() == 130


def test_control_c_ends_the_run_and_gives_the_terminal_back(tmp_path: Path) -> None:
    line = words(tmp_path, "--grace", "2", then=trainer("--train-iters", "100000"))
    with on_terminal(line, tmp_path) as terminal:
        terminal.until(rb" \d+/100000 ")
        os.write(terminal.master, b"\x03")
        assert terminal.ends() == 130
        assert b"interrupted" in terminal.text
        assert terminal.seen.rfind(SHOW_CURSOR) > terminal.seen.rfind(b"\x1b[?25l")
        assert left_behind(tmp_path) == []
    assert b"Traceback" not in terminal.text


def test_a_terminal_that_is_closed_ends_the_run_in_order(tmp_path: Path) -> None:
    line = words(tmp_path, "--grace", "2", then=trainer("--train-iters", "100000"))
    with on_terminal(line, tmp_path) as terminal:
        terminal.until(rb" \d+/100000 ")
        os.close(terminal.master)
        assert terminal.process.wait(PATIENCE) == 128 + signal.SIGHUP
        assert left_behind(tmp_path) == []
    assert (tmp_path / "runs" / "r" / "story.json").exists()


def test_a_terminal_that_can_draw_nothing_gets_plain_lines(tmp_path: Path) -> None:
    line = words(tmp_path, then=trainer("--train-iters", "3"))
    with on_terminal(line, tmp_path, TERM="dumb") as terminal:
        assert terminal.ends() == 0
    assert b"\x1b[" not in terminal.seen
    assert b"mwatch: run r (observe)" in terminal.seen


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[RunScreen, Terminal]]:
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    with os.fdopen(slave, "w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stderr", file)
        told = gone_bad()
        snapshot = take(told.engine.job, Inputs(), at=told.waits(1).at)
        run = ShownRun(run_folder(tmp_path), "http://127.0.0.1:1/", None, lambda: [snapshot])
        shown = RunScreen(run, "act")
        terminal = Terminal(master, None)  # type: ignore[arg-type]
        yield shown, terminal
        shown.ended(RunEnd(0, "done", True))
        monkeypatch.undo()
    os.close(master)


def test_what_is_wrong_and_what_was_done_is_on_the_panel(
    screen: tuple[RunScreen, Terminal],
) -> None:
    shown, terminal = screen
    told = gone_bad()
    assessment = told.waits(1)
    shown.began(2, 40, "the newest")
    shown.looked(told.engine.job, assessment)
    shown.found(told.engine.incidents[0])
    shown.acted(assessment.decision, True, None)
    for text in (
        b"attempt 2 starts from checkpoint 40",
        b"nan: The loss is not printed any more",
        b"restart from checkpoint 6",
        rb" 9/1000 ",
        rb"lm loss +not printed",
        rb"http://127\.0\.0\.1:1/",
    ):
        terminal.until(text)


def test_a_line_that_never_ends_is_bounded(screen: tuple[RunScreen, Terminal]) -> None:
    shown, terminal = screen
    for _ in range(100):
        shown.printed(b"50%|#####     |\r" * 10_000)
        terminal.read(0)
    shown.noted("drawn")
    terminal.until(rb"50%\|##")
    terminal.seen = b""
    shown.printed(b"100%|##########|\r\n" + b"x" * 100_000 + b"\n")
    shown.noted("drawn")
    terminal.until(re.escape(b"100%|##########|"))
    terminal.until(b"x{2000}")
    assert b"50%|" not in terminal.text, "what a terminal would have been left with"
    assert terminal.text.count(b"x") <= 2000


def test_more_lines_than_anybody_reads_are_left_out_and_counted(
    screen: tuple[RunScreen, Terminal],
) -> None:
    shown, terminal = screen
    shown.printed(b"".join(b"%06d\n" % number for number in range(1000)))
    shown.noted("drawn")
    terminal.until(b"600 lines not shown")
    terminal.until(b"000999")
    assert b"000599" not in terminal.text
