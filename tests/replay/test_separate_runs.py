# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of several runs is several runs; pods and attempts of one run are one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.replay.separate_runs import separate_runs
from support.repository.json_schema import read_json
from support.runs.commands import mwatch
from support.runs.recorded import RunLog

DAY = 86400.0


def runs_of(folder: Path, **texts: object) -> list[list[str]]:
    """Write the files and return the names in each run."""
    for name, text in texts.items():
        (folder / f"{name.replace('__', '.')}.log").write_text(str(text))
    return [[Path(file).stem for file in run] for run in separate_runs([str(folder)])]


def finished(total: int, at: float = 0.0) -> RunLog:
    return RunLog(total=total, at=at).start().steps(1, min(total, 60)).done()


def test_unrelated_runs_are_apart(tmp_path: Path) -> None:
    texts = {f"model{letter}": finished(100 + place, place * DAY)
             for place, letter in enumerate("abcdef")}  # fmt: skip
    assert runs_of(tmp_path, **texts) == [[name] for name in sorted(texts)]


def test_runs_side_by_side_with_other_iterations_are_apart(tmp_path: Path) -> None:
    one = RunLog(total=900).start().steps(1, 300)
    other = RunLog(total=900, at=20.0).start(load=500).steps(501, 800)
    assert runs_of(tmp_path, llama=one, mixtral=other) == [["llama"], ["mixtral"]]


def test_the_next_run_after_a_finished_one_is_another(tmp_path: Path) -> None:
    one = RunLog(total=60).start().steps(1, 60).done()
    other = RunLog(total=60, at=one.at + 600.0).start().steps(1, 30)
    assert runs_of(tmp_path, first=one, second=other) == [["first"], ["second"]]


def test_logs_without_times_and_with_other_names_are_apart(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\nValueError: bad\n"
    assert len(runs_of(tmp_path, alpha=error, beta=error, gamma=error)) == 3


def test_pods_of_one_run_are_one(tmp_path: Path) -> None:
    run = str(RunLog(total=400).start().steps(1, 100).killed()).splitlines(keepends=True)
    steps = [line for line in run if "] iteration " in line]
    rest = [line for line in run if line not in steps]
    assert runs_of(tmp_path, zero="".join(rest), last="".join(steps)) == []


def test_attempts_of_one_run_are_one(tmp_path: Path) -> None:
    first = RunLog(total=300).start().steps(1, 150).killed()
    second = RunLog(total=300, at=first.at + 60).start(load=100).steps(101, 300).done()
    assert runs_of(tmp_path, podb=first, poda=second) == []


@pytest.mark.parametrize(
    "names",
    [
        ("worker-0", "worker-1"),
        ("gpt-0__previous", "gpt-0"),
        ("gpt-x7k2b", "gpt-d4wzq"),
        ("node-0-stdout", "node-0-stderr"),
    ],
)
def test_names_that_differ_by_pod_and_attempt_are_one_run(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    error = "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: bad\n"
    assert runs_of(tmp_path, **dict.fromkeys(names, error)) == []


def test_a_resume_with_more_iterations_is_the_same_run(tmp_path: Path) -> None:
    first = RunLog(total=300).start().steps(1, 150).killed()
    second = RunLog(total=600, at=first.at + 60).start(load=100).steps(101, 300)
    assert runs_of(tmp_path, **{"gpt-0__previous": first, "gpt-0": second}) == []


def test_other_texts_go_with_the_only_run(tmp_path: Path) -> None:
    assert runs_of(tmp_path, train=finished(100), readme="how to start it\n") == []


def test_the_commands_list_the_runs(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(str(finished(60)))
    (tmp_path / "bad.log").write_text(
        str(RunLog(total=90, at=2 * DAY).start().steps(1, 50).killed())
    )
    for command in ("diagnose", "replay"):
        done = mwatch(command, tmp_path)
        assert done.returncode == 1
        assert "holds 2 runs" in done.stdout
        assert "KILLED" in done.stdout
        assert "FINISHED" in done.stdout
    listed = read_json(mwatch("diagnose", tmp_path, "--json").stdout, "runs")["runs"]
    assert [each["verdict"]["cause"] for each in listed] == ["killed", "finished"]
    page = mwatch("report", tmp_path, "--out", tmp_path / "page.html")
    assert page.returncode == 2
    assert "about one run" in page.stderr
