# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch top`: the screen with real run folders, a silent API server, and a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
import urllib3
from textual.pilot import Pilot
from typer.testing import CliRunner

from mwatch.cli.program import program
from mwatch.cli.render.job_sources import ClusterJobs, JobSource, LocalRuns
from mwatch.cli.render.top_screen import TopApp
from mwatch.errors import InputError
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, Verdict
from mwatch.report import story_json
from mwatch.report.files import STORY
from mwatch.report.model import CheckpointStory, IncidentStory
from mwatch.report.run_report import RunReport
from mwatch_trainer.probe.record_file import pack
from support.builders.probe import RECORD
from support.builders.story import START, Watch
from support.repository.json_schema import read_json
from support.runs.live_runs import environment
from support.waiting import PATIENCE

NODE = "ip-10-120-33-41.us-west-2.compute.internal"
LINE = (
    " iteration {:8}/      90 | consumed samples: 8 | elapsed time per iteration (ms): 500.0 | "
    "learning rate: 1.0E-05 | global batch size: 8 | lm loss: 2.5E+00 | loss scale: 1.0 | "
    "grad norm: 1.0 | number of skipped iterations: 0 | number of nan iterations: 0 |"
)
HOSTILE = "[bold red]x[/] \x1b[31m[link=a]"
KEYS: Callable[[str], str] = lambda typed: "space" if typed == " " else typed  # noqa: E731
HEALTHY_LINE = LINE.format(5)


def a_report(**change: Any) -> RunReport:
    watch = Watch()
    watch.says(HEALTHY_LINE)
    return replace(watch.recorder.report(is_over=True), **change)


def hung(rank: int = 3, summary: str = "no progress for 200 s") -> RunReport:
    culprit = Culprit(rank, node=NODE, pod="worker-with-a-long-name-3", place="train.py:32 in step")
    incident = IncidentStory(
        1, "hang", "critical", "rank 3 never joined", 5, START, START, culprit="rank 3: behind"
    )
    return a_report(
        verdict=Verdict(Cause.HANG, summary, 5, START, culprit),
        incidents=(incident,),
        checkpoints=(CheckpointStory(4, START, "good", "it loads", "complete"),),
    )


def a_run(parent: Path, name: str, report: RunReport) -> Path:
    volume = parent / name / "volume"
    volume.mkdir(parents=True)
    story_json.write(replace(report, run=name), parent / name / STORY)
    return volume


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is well, one with a culprit, and one with hostile names and logs."""
    parent = tmp_path_factory.mktemp("top") / "runs"
    a_run(parent, "alpha", a_report())
    volume = a_run(parent, "pretrain_gpt-with-a-name-longer-than-most-1116", hung())
    (volume / "probe").mkdir()
    for rank in (2, 3):
        record = RECORD._replace(rank=rank, iteration=9 - rank, phase="collective")
        (volume / "probe" / f"rank-{rank}").write_bytes(pack(record, 2))
    (volume / "trainer.log").write_text(f"{HEALTHY_LINE}\nlast \x1b]0;title\x07{HOSTILE}\n")
    a_run(parent, "[u]odd[u]", hung(7, HOSTILE))
    return parent


def shown(pilot: Pilot[None]) -> str:
    """What is on the screen."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(part.text for part in strip) for strip in strips)


def drive(
    sources: list[JobSource], use: Callable[[Pilot[None]], Awaitable[None]], columns: int = 120
) -> None:
    async def session() -> None:
        screen = TopApp(sources, seconds=1.0)
        async with screen.run_test(size=(columns, 30)) as pilot:
            await use(pilot)

    asyncio.run(session())


async def until_screen(pilot: Pilot[None], is_so: Callable[[str], bool], what: object) -> str:
    """The first screen that is so: its parts need not be drawn in the same moment."""
    end = time.monotonic() + PATIENCE
    while not is_so(screen := shown(pilot)):
        assert time.monotonic() < end, f"not {what}:\n{screen}"
        await pilot.pause(0.02)
    return screen


async def until_shown(
    pilot: Pilot[None], *texts: str, order: Sequence[str] = (), without: str = ""
) -> str:
    """With these texts, those in `order` one after the other."""

    def is_so(screen: str) -> bool:
        places = [screen.find(text) for text in order]
        is_in_order = -1 not in places and places == sorted(places)
        is_without = not without or without not in screen
        return is_in_order and is_without and all(text in screen for text in texts)

    return await until_screen(pilot, is_so, (texts, order, without))


async def until_ended(pilot: Pilot[None]) -> None:
    end = time.monotonic() + PATIENCE
    while pilot.app.is_running:
        assert time.monotonic() < end, "it does not end"
        await asyncio.sleep(0.02)


def test_jobs_are_sorted_filtered_opened_and_closed_by_keys(runs: Path) -> None:
    async def use(pilot: Pilot[None]) -> None:
        worst_first = ["[u]odd", "pretrain_gpt", "alpha"]
        await until_shown(pilot, "3 jobs, 2 with problems", order=worst_first)
        await pilot.press("s")
        await until_shown(pilot, "sorted by name", order=["alpha", "pretrain_gpt"])
        await pilot.press("S")
        turned = ["pretrain_gpt", "alpha"]
        await until_shown(pilot, "sorted by name, reversed", order=turned)
        await pilot.press("slash", *map(KEYS, "hang pretrainq"))
        # q is text while the filter is typed
        await until_shown(pilot, "only with: hang pretrainq", without="alpha")
        await pilot.press("backspace", "enter")
        await until_shown(pilot, "only with: hang pretrain ", "pretrain_gpt", without="[u]odd")
        await pilot.press("enter")
        await until_shown(pilot, "HANG since iteration 5", f"node {NODE}", "in step")
        await pilot.press("2")
        culprit_first = ["culprit", "\n 2 "]
        await until_shown(pilot, "LAST RECORD", "collective", order=culprit_first)
        await pilot.press("3")
        await until_shown(pilot, "rank 3 never joined")
        await pilot.press("4")
        await until_shown(pilot, "IN THE FOLDER", "it loads")
        await pilot.press("5")
        last = r"last \x1b]0;title\x07[bold red]x[/] [link=a]"
        await until_shown(pilot, "end of trainer.log", "lm loss: 2.5E+00", last)
        await pilot.press("escape")
        await until_shown(pilot, "only with: hang pretrain ")
        await pilot.press("escape")
        await until_shown(pilot, "alpha", "[u]odd[u]")
        await pilot.press("q")
        await until_ended(pilot)

    drive([LocalRuns(runs)], use)


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_culprit_is_whole_at_80_columns(runs: Path, columns: int) -> None:
    async def use(pilot: Pilot[None]) -> None:
        screen = await until_shown(pilot, "3 jobs", "pretra")
        (row,) = (line for line in screen.splitlines() if "pretra" in line)
        assert f"rank 3, node {NODE} " in row and "hang" in row
        assert ("no progress" in row) == (columns == 200), "the summary is cut first"

    drive([LocalRuns(runs)], use, columns)


def test_text_of_a_job_is_shown_as_it_is_and_never_as_markup(runs: Path) -> None:
    async def use(pilot: Pilot[None]) -> None:
        await until_shown(pilot, "[u]odd[u]", r"[bold red]x[/] \x1b[31m[link=a]")
        await pilot.press("enter")
        await until_shown(pilot, "run [u]odd[u]", r"[bold red]x[/] \x1b[31m[link=a]")

    drive([LocalRuns(runs)], use, 200)


@contextmanager
def silent_server() -> Iterator[int]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Hangs(ClusterJobs):
    """The first call ends when it may; the second one does not even end after its time."""

    is_first = True

    def __init__(self, access: Access) -> None:
        super().__init__(access, "training")
        self.may_fail, self.begun, self.over = (threading.Event() for _ in range(3))

    def read(self) -> Any:
        if self.is_first:
            self.is_first = False
            self.may_fail.wait(3 * PATIENCE)
            return super().read()
        self.begun.set()
        return self.over.wait(3 * PATIENCE)


def test_a_cluster_that_does_not_answer_is_in_the_header_and_holds_up_no_key(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwatch.cli.render.top_screen._LATE_SECONDS", 3 * PATIENCE)

    async def use(pilot: Pilot[None]) -> None:
        await until_shown(pilot, "namespace training: reading")
        await until_shown(pilot, "alpha")
        await pilot.press("s")
        await until_shown(pilot, "sorted by name")
        hangs.may_fail.set()
        problem = await until_shown(pilot, "does not answer")
        assert "alpha" in problem, "the runs stay"
        await until_screen(pilot, lambda _: hangs.begun.is_set(), "asked again")
        began = time.monotonic()
        await pilot.press("q")
        await until_ended(pilot)
        assert time.monotonic() - began < PATIENCE, "a third of the time that the call takes"

    with silent_server() as port:
        link = Connection(f"http://127.0.0.1:{port}", urllib3.PoolManager(), lambda: None, "x")
        hangs = Hangs(Access(link, limits=CallLimits(call_seconds=4.0, tries=1)))
        try:
            drive([hangs, LocalRuns(runs)], use, 160)
        finally:
            hangs.may_fail.set()
            hangs.over.set()


def test_the_last_list_stays_with_its_age_when_a_source_fails(tmp_path: Path) -> None:
    a_run(tmp_path, "alpha", a_report())

    class Breaks(LocalRuns):
        is_broken = False

        def read(self) -> Any:
            if self.is_broken:
                raise TypeError("an answer of another shape")
            return super().read()

    source = Breaks(tmp_path)

    async def use(pilot: Pilot[None]) -> None:
        await until_shown(pilot, "alpha")
        source.is_broken = True
        await pilot.press("r")
        await until_shown(pilot, "alpha", "s ago", "TypeError: an answer of another shape")
        source.is_broken = False
        await pilot.press("r")
        await until_shown(pilot, "alpha", without="TypeError")

    drive([source], use)


class Terminal:
    """`mwatch top` with a real terminal for all three streams."""

    def __init__(self, line: list[str], folder: Path) -> None:
        self._ours, self._theirs = pty.openpty()
        ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        env = environment(TERM="xterm", HOME=str(folder), KUBECONFIG=str(folder / "none"))
        self.process = subprocess.Popen(
            line, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, cwd=folder, env=env
        )
        self.output = b""

    def wait_for(self, wanted: bytes) -> None:
        end = time.monotonic() + PATIENCE
        while wanted not in self.output:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))
            assert ready, self.output[-2000:]
            self.output += os.read(self._ours, 65536)

    def type(self, data: bytes) -> None:
        os.write(self._ours, data)

    def close(self) -> None:
        assert termios.tcgetattr(self._theirs) == self.before
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


TOP = [sys.executable, "-m", "mwatch", "top"]


@pytest.mark.parametrize("end", [b"q", b"\x03", signal.SIGTERM])
def test_on_a_terminal_the_screen_ends_and_gives_it_back(
    runs: Path, end: bytes | signal.Signals
) -> None:
    terminal = Terminal(TOP, runs.parent)
    try:
        terminal.wait_for(b"alpha")
        if isinstance(end, bytes):
            terminal.type(end)
        else:
            terminal.process.send_signal(end)
        terminal.wait_for(b"\x1b[?1049l")
        assert terminal.process.wait(PATIENCE) == 0
        assert b"\x1b[?1049h" in terminal.output and b"Traceback" not in terminal.output
    finally:
        terminal.close()


def test_without_textual_one_table_is_printed_with_the_install_command(runs: Path) -> None:
    code = (
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'textual' else find(name, *more)\n"
        "import sys; sys.argv[1:] = ['top']; from mwatch.cli.main import main; main()"
    )
    terminal = Terminal([sys.executable, "-c", code], runs.parent)
    try:
        terminal.wait_for(b"pip install 'mwatch[top]'")
        terminal.wait_for(b"alpha")
        assert terminal.process.wait(PATIENCE) == 0
    finally:
        terminal.close()


def test_in_a_pipe_one_whole_table_is_printed(runs: Path) -> None:
    env = environment(HOME=str(runs), KUBECONFIG=str(runs / "none"))
    done = subprocess.run(
        TOP, cwd=runs.parent, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout and len(done.stdout.splitlines()) == 4
    assert "pretrain_gpt-with-a-name-longer-than-most-1116" in done.stdout
    assert f"rank 3, node {NODE}  no progress for 200 s" in done.stdout


def test_as_json_a_run_has_the_keys_of_a_job_and_its_culprit(runs: Path) -> None:
    done = CliRunner().invoke(program(), ["top", "--json", "--runs", str(runs)])
    assert done.exit_code == 0
    jobs = {each["name"]: each for each in read_json(done.stdout, "status")["jobs"]}
    found = jobs["pretrain_gpt-with-a-name-longer-than-most-1116"]
    assert (found["kind"], found["cause"], found["source"]) == ("run", "hang", "story")
    assert (found["culprit"]["rank"], found["culprit"]["node"]) == (3, NODE)


def test_a_cluster_that_cannot_be_read_does_not_hide_the_runs(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    content = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    (tmp_path / "config").write_text(json.dumps({**content, "current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(runs.parent)
    done = CliRunner().invoke(program(), ["top"])
    assert done.exit_code == 3 and "alpha" in done.stdout
    assert "not read: the API server at http://127.0.0.1:9 does not answer" in done.stdout


def test_a_folder_and_a_cluster_exclude_each_other(runs: Path) -> None:
    done = CliRunner().invoke(program(), ["top", "--runs", str(runs), "-n", "training"])
    assert done.exit_code == 2 and "not both" in done.stderr
    missing = CliRunner().invoke(program(), ["top", "--runs", str(runs / "nothing")])
    assert isinstance(missing.exception, InputError)
