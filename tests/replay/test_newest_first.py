# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Logs that begin with their last line are judged as the same logs in the order of writing."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.replay import newest_first
from mwatch.replay.log_files import find
from mwatch.replay.newest_first import in_time_order
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.builders.events import megatron_line
from support.runs.commands import mwatch

START = datetime(2026, 3, 14, 23, 6, 11, 500_000, UTC)
POD = "gpt-worker-0"
FULL = "OSError: [Errno 28] No space left on device: '/mnt/ckpt/iter_0000010/shard.pt'"
LINES = (
    *(megatron_line(number) for number in range(1, 11)),
    "Traceback (most recent call last):",
    '  File "/opt/train/save.py", line 12, in save',
    "    torch.save(state, path)",
    FULL,
)
NOW = (START + timedelta(days=30)).timestamp()


def at(number: int) -> datetime:
    return START + timedelta(seconds=number)


def plain(lines: Sequence[str]) -> str:
    return "".join(f"{at(number).isoformat()} {line}\n" for number, line in enumerate(lines))


def backward(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in reversed(plain(lines).splitlines()))


def insights(lines: Sequence[str]) -> str:
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(["@timestamp", "@message"])
    for number, line in reversed(list(enumerate(lines))):
        table.writerow([at(number).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], line])
    return out.getvalue()


def logcli(lines: Sequence[str]) -> str:
    entries = [
        {"labels": {"pod": POD}, "line": line, "timestamp": at(number).isoformat()}
        for number, line in enumerate(lines)
    ]
    return "".join(json.dumps(each) + "\n" for each in reversed(entries))


def loki(lines: Sequence[str]) -> str:
    values = [[str(round(at(number).timestamp() * 1e9)), line] for number, line in enumerate(lines)]
    stream = {"stream": {"pod": POD, "container": "pytorch"}, "values": values[::-1]}
    return json.dumps({"status": "success", "data": {"resultType": "streams", "result": [stream]}})


WAYS: dict[str, Callable[[Sequence[str]], str]] = {
    "plain": backward,
    "CloudWatch Insights": insights,
    "logcli": logcli,
    "Loki": loki,
}


def put(folder: Path, text: str, name: str = "train.log") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def judged(*files: Path) -> RunReport:
    return replay(ReplayRequest([str(file) for file in files]), NOW)


@pytest.mark.parametrize("way", WAYS)
def test_a_log_that_begins_with_its_last_line_is_read_as_it_was_written(
    tmp_path: Path, way: str
) -> None:
    file = put(tmp_path, WAYS[way](LINES))
    report = judged(file)
    assert report.verdict.cause is Cause.STORAGE
    assert report.attempts[-1].last_iteration == 10
    assert report.files == (str(file),)
    assert any(str(file) in note for note in report.notes)


def test_evidence_names_the_line_of_the_file_that_was_given(tmp_path: Path) -> None:
    file = put(tmp_path, backward(LINES))
    evidence = [each for found in judged(file).findings for each in found.evidence]
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if FULL in line)
    assert (str(file), number) in {(each.file, each.line) for each in evidence}


def test_lines_without_a_time_stay_below_the_one_that_they_belong_to(tmp_path: Path) -> None:
    entries = [f"{at(number).isoformat()} {line}" for number, line in enumerate(LINES[:10])]
    entries.append("\n".join([f"{at(11).isoformat()} {LINES[10]}", *LINES[11:]]))
    file = put(tmp_path, "".join(f"{entry}\n" for entry in reversed(entries)))
    assert judged(file).verdict.cause is Cause.STORAGE


def test_in_a_folder_it_is_read_once_and_what_else_is_there_too(tmp_path: Path) -> None:
    put(tmp_path, backward(LINES))
    put(tmp_path, plain(["rank 1 is up"]), "other.log")
    with in_time_order([str(tmp_path)]) as turned:
        shown = [file.shown for file in find(turned.names).files]
    assert shown == ["train.log", "other.log"]
    assert judged(tmp_path).verdict.cause is Cause.STORAGE


def test_a_pipe_is_turned_round_too() -> None:
    done = mwatch("diagnose", "-", "--json", stdin=backward(LINES))
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["verdict"]["cause"] == "storage"


def test_a_log_in_its_order_is_not_copied(tmp_path: Path) -> None:
    file = put(tmp_path, plain(LINES))
    with in_time_order([str(file)]) as turned:
        assert turned.names == [str(file)]
        assert not turned.origins


@pytest.mark.parametrize("text", ["", "no time at all\n" * 20, plain(LINES[:1]) * 20])
def test_what_shows_no_order_is_left_alone(tmp_path: Path, text: str) -> None:
    with in_time_order([str(put(tmp_path, text))]) as turned:
        assert not turned.origins


def test_a_clock_that_goes_back_at_the_next_pod_is_no_such_log(tmp_path: Path) -> None:
    with in_time_order([str(put(tmp_path, plain(LINES) + plain(LINES)))]) as turned:
        assert not turned.origins


def test_one_that_is_too_large_to_turn_round_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_first, "MAX_BYTES", 100)
    with pytest.raises(InputError, match=r"tac FILE > train\.log"):
        judged(put(tmp_path, backward(LINES)))


@pytest.mark.parametrize(
    "result",
    [
        {"resultType": "matrix", "result": [1]},
        {"resultType": "streams", "result": []},
        {"resultType": "streams", "result": [{"stream": {}, "values": [["x", "y"]]}]},
    ],
)
def test_an_answer_of_loki_without_lines_says_how_to_get_them(
    tmp_path: Path, result: dict[str, Any]
) -> None:
    text = json.dumps({"status": "success", "data": result})
    with pytest.raises(InputError, match="without log lines; save them by `logcli"):
        judged(put(tmp_path, text))
