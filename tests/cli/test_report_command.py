# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch report` as a person runs it: a real process, its output, and the page it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from mwatch.engine.engine import Engine
from mwatch.report import story_json
from mwatch.report.recorder import ReportRecorder
from support.builders.story import replayed
from support.repository.json_schema import read_json
from support.runs.commands import mwatch
from support.runs.recorded import RunLog

PATHS = [str(Path(path).resolve()) for path in sys.path if path]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}


def run(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return mwatch("report", *arguments, cwd=folder, **options)


def killed() -> str:
    return str(RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A folder as `mwatch run` leaves it."""
    folder = tmp_path / "runs" / "tuesday"
    folder.mkdir(parents=True)
    log = str(RunLog(total=100).start().steps(1, 100).save(100).done())
    story_json.write(replayed(tmp_path, log, "tuesday"), folder / "story.json")
    return folder


def test_a_recorded_log_becomes_a_page_beside_the_person(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(killed())
    done = run(tmp_path, "trainer.log")
    assert (done.returncode, done.stderr) == (0, "")
    summary, url = done.stdout.splitlines()
    assert summary.startswith("report.html (") and summary.endswith("kB): killed, 1 incident")
    assert url == (tmp_path / "report.html").as_uri()
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<title>trainer · mwatch</title>" in page


def test_a_run_folder_becomes_a_page_inside_it(kept: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "runs/tuesday")
    assert (done.returncode, done.stderr) == (0, "")
    assert "<title>tuesday · mwatch</title>" in (kept / "report.html").read_text()
    assert sorted(each.name for each in kept.iterdir()) == ["report.html", "story.json"]


@pytest.mark.parametrize("name", ["tuesday", "runs/tuesday/story.json"])
def test_a_run_may_be_named_by_its_name_or_its_story(name: str, kept: Path, tmp_path: Path) -> None:
    assert run(tmp_path, name).returncode == 0
    assert (kept / "report.html").is_file()


def test_the_page_may_be_written_elsewhere_with_another_title(kept: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(kept), "--out", "a.html", "--title", "Tuesday's run")
    assert done.returncode == 0
    assert "<title>Tuesday&#x27;s run · mwatch</title>" in (tmp_path / "a.html").read_text()
    assert not (kept / "report.html").exists()


def test_json_shows_where_the_page_is_and_what_it_says(kept: Path, tmp_path: Path) -> None:
    done = run(tmp_path, str(kept), "--json")
    said = read_json(done.stdout, "report")
    assert said["bytes"] == (kept / "report.html").stat().st_size
    assert said["report"] == str(kept / "report.html")
    assert said["url"] == (kept / "report.html").as_uri()
    assert (said["verdict"]["cause"], said["incidents"]) == ("finished", 0)


def test_a_bundle_becomes_a_page_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(killed())
    with tarfile.open(tmp_path / "bundle.tgz", "w:gz") as archive:
        archive.add(tmp_path / "trainer.log", "pods/pod-0/trainer.log")
        archive.add(tmp_path / "trainer.log", "previous/job.json")  # not a log
    (tmp_path / "trainer.log").unlink()
    done = run(tmp_path, "bundle.tgz")
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "report.html").read_text()
    assert "Signal 9 (SIGKILL) received by PID" in page.partition('id="log"')[2]


def test_a_log_may_be_piped_in(tmp_path: Path) -> None:
    done = run(tmp_path, "-", stdin=killed())
    assert done.returncode == 0
    assert "recorded run" in (tmp_path / "report.html").read_text()


def test_the_verdict_is_the_exit_code_only_on_request(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(killed())
    story_json.write(ReportRecorder(Engine("empty", {})).report(), tmp_path / "story.json")
    for name, expected in (("trainer.log", 1), ("story.json", 3), (str(kept), 0)):
        out = f"{expected}.html"
        assert run(tmp_path, name, "--out", out, "--exit-code").returncode == expected
        assert (tmp_path / out).is_file()
        assert run(tmp_path, name, "--out", out, "--force").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.log"], "no such file"),
        (["broken"], "story.json: not JSON"),
        (["trainer.log", "--out", "page.pdf"], "name it .html"),
        (["trainer.log", "--out", "broken"], "is a folder"),
        (["trainer.log", "--out", "no/page.html"], "there is no folder no"),
        (["trainer.log", "--policy", "trainer.log"], "trainer.log"),
    ],
)
def test_bad_input_is_exit_2_in_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "trainer.log").write_text(killed())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "story.json").write_text("{")
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*.html"))


def test_a_folder_that_may_not_be_written_to_is_reported_with_its_fix(kept: Path) -> None:
    kept.chmod(0o555)
    try:
        done = run(kept, str(kept), is_unprivileged=True)
    finally:
        kept.chmod(0o755)
    assert (done.returncode, "--out" in done.stderr) == (2, True)


def test_an_earlier_page_of_the_same_run_is_replaced(kept: Path, tmp_path: Path) -> None:
    assert run(tmp_path, str(kept), "--title", "first").returncode == 0
    assert run(tmp_path, str(kept)).returncode == 0
    assert "<title>tuesday · mwatch</title>" in (kept / "report.html").read_text()
    assert len(list(kept.glob(".report*"))) == 0


@pytest.mark.parametrize("out", ["report.html", "mine.html"])
def test_a_file_that_mwatch_did_not_write_needs_force(tmp_path: Path, out: str) -> None:
    (tmp_path / "trainer.log").write_text(killed())
    (tmp_path / out).write_text("mine")
    arguments = ["trainer.log", *(["--out", out] if out != "report.html" else [])]
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{out} already exists" in done.stderr and "--force" in done.stderr
    assert (tmp_path / out).read_text() == "mine"
    assert run(tmp_path, *arguments, "--force").returncode == 0
    assert (tmp_path / out).read_text() != "mine"


def test_a_page_of_another_run_is_not_replaced(tmp_path: Path) -> None:
    for name in ("monday.log", "tuesday.log"):
        (tmp_path / name).write_text(killed())
    assert run(tmp_path, "monday.log").returncode == 0
    page = (tmp_path / "report.html").read_text()
    done = run(tmp_path, "tuesday.log")
    assert (done.returncode, "report.html already exists" in done.stderr) == (2, True)
    assert (tmp_path / "report.html").read_text() == page


def test_a_named_page_is_not_replaced_even_by_its_own_run(kept: Path, tmp_path: Path) -> None:
    assert run(tmp_path, str(kept), "--out", "kept.html").returncode == 0
    done = run(tmp_path, str(kept), "--out", "kept.html")
    assert (done.returncode, "--force" in done.stderr) == (2, True)
