# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The lines of the log that go into the page: enough to understand it, bounded and scrubbed."""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.html.page import render
from mwatch.report.log_ends import MAX_INCIDENTS, MAX_LINES, MAX_LOGS, ends, of_run
from mwatch.report.run_report import RunReport
from support.builders.story import replayed
from support.runs.recorded import RunLog

SECRET = "hf_" + "abcdefgh" * 5
TRACEBACK = (
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/w/pretrain_gpt.py", line 300, in <module>',
    f'[rank0]:     pretrain(token="{SECRET}")',
    "[rank0]: ValueError: the tokenizer has no pad token",
)


def crashed_twice() -> str:
    log = RunLog(total=900).start().steps(1, 100).save(100).steps(101, 150)
    for line in TRACEBACK:
        log.say(line)
    log.killed().wait(20).start(load=100).steps(101, 300)
    return str(log.killed())


def played(file: Path) -> RunReport:
    return replay(ReplayRequest([str(file)]), 2e9, has_curves=True)


@pytest.mark.parametrize("name", ["trainer.log", "trainer.log.gz"])
def test_the_end_of_the_log_and_the_traceback_of_each_attempt_are_in_the_page(
    tmp_path: Path, name: str
) -> None:
    file, text = tmp_path / name, crashed_twice()
    file.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    report = played(file)
    last, first = report.log_ends
    assert list(last.lines) == [line.rstrip() for line in text.splitlines()[-MAX_LINES:]]
    assert first.incident == 1 and len(first.lines) <= MAX_LINES
    assert first.first is not None
    assert first.lines[0] == text.splitlines()[first.first - 1]
    page = render(report)
    for line in ("Traceback (most recent call last)", "the tokenizer has no pad token"):
        assert line in "\n".join(first.lines) and line in page
    assert SECRET not in page and "[scrubbed" in page


def test_logs_in_a_folder_or_an_archive_give_the_lines_before_an_incident(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "trainer.log").write_text(crashed_twice())
    with tarfile.open(tmp_path / "logs.tgz", "w:gz") as archive:
        archive.add(logs, "logs")
    for given in (logs, tmp_path / "logs.tgz"):
        (first,) = [each for each in played(given).log_ends if each.incident == 1]
        assert "the tokenizer has no pad token" in "\n".join(first.lines)


def test_what_the_end_of_the_log_shows_is_not_shown_again(tmp_path: Path) -> None:
    report = replayed(tmp_path, str(RunLog(total=99).start().steps(1, 20).killed()))
    assert len(report.incidents) == 1
    assert [each.incident for each in report.log_ends] == [None]


def test_the_lines_of_a_watched_run_come_from_its_folder_alone(tmp_path: Path) -> None:
    text = crashed_twice()
    # Its evidence names a file outside of the run.
    outside = replace(replayed(tmp_path, text), log_ends=())
    folder = tmp_path / "run"
    (folder / "volume").mkdir(parents=True)
    (folder / "volume" / "trainer.log").write_text(text)
    (end,) = of_run(outside, folder).log_ends
    assert end.incident is None and end.lines[-1] == text.splitlines()[-1]


def test_long_lines_many_logs_and_colours_stay_bounded() -> None:
    data = b"\x1b[31mred\x1b[0m 10 %\r20 %\n" + b"x" * 100_000 + b"\n"
    found = ends({f"pod-{number}.log": data for number in range(20)}, 1 << 20)
    assert len(found) == MAX_LOGS and found[-1].file == "pod-19.log"
    assert found[-1].lines[0] == "20 %"
    assert len(found[-1].lines[1]) <= 401
    assert MAX_INCIDENTS * MAX_LINES * 401 < 2_000_000


def test_a_tail_that_begins_inside_a_line_leaves_that_line_out() -> None:
    (end,) = ends({"a.log": b"alf a line\nwhole\n"}, 17)
    assert end.lines == ("whole",)
