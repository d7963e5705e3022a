# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched run in plain lines: each thing once, as text or as one object."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from mwatch.cli.render.run_lines import RunLines
from mwatch.watch.watcher import RunEnd
from support.builders.run import gone_bad
from support.repository.json_schema import read_json


def tell_all(lines: RunLines) -> None:
    told = gone_bad()
    assessment = told.waits(1)
    incident = told.engine.incidents[0]
    lines.noted("run r (act): here")
    lines.began(1, None, "")
    lines.began(2, 6, "checkpoint 6: the newest")
    lines.looked(told.engine.job, assessment)
    lines.printed(b"its own way")
    lines.found(incident)
    lines.acted(assessment.decision, True, "/runs/r/incidents/x")
    lines.acted(assessment.decision, False, None)
    for symptom in incident.symptoms:
        symptom.closed_at = incident.detected_at + 90
    lines.closed(incident)
    lines.ended(RunEnd(93, "given up", False))


def objects(text: str) -> list[dict[str, Any]]:
    return [read_json(line, "event") for line in text.splitlines()]


def test_people_read_one_line_for_each_thing(capfd: pytest.CaptureFixture[str]) -> None:
    tell_all(RunLines())
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert all(line.startswith("mwatch: ") for line in lines)
    assert lines[1] == "mwatch: attempt 1 starts"
    assert lines[2] == "mwatch: attempt 2 starts from checkpoint 6: the newest"
    assert lines[3].startswith("mwatch: critical: nan: The loss is not printed any more")
    assert lines[4].startswith("mwatch: restart from checkpoint 6")
    assert lines[4].endswith("evidence in /runs/r/incidents/x")
    assert lines[5].startswith("mwatch: would restart from checkpoint 6")
    assert lines[6] == "mwatch: nan is over after 90 s"
    assert lines[7] == "mwatch: ended: given up (exit code 93)"
    assert len(lines) == 8


def test_machines_read_one_object_for_each(capfd: pytest.CaptureFixture[str]) -> None:
    tell_all(RunLines(as_json=True))
    told = objects(capfd.readouterr().err)
    assert [each["event"] for each in told] == [
        "note", "attempt", "attempt", "incident", "action", "action", "over", "end",
    ]  # fmt: skip
    incident, action = told[3], told[4]
    assert (incident["cause"], incident["since_iteration"]) == ("nan", 7)
    assert (action["action"], action["resume_from"], action["is_done"]) == ("restart", 6, True)
    assert told[-1]["exit_code"] == 93


def test_a_text_from_a_log_is_no_command_to_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    told = gone_bad()
    incident = told.engine.incidents[0]
    incident.lead.finding = replace(
        incident.finding, summary="\x1b[2J\r\nmwatch: all is well \u202e"
    )
    RunLines().found(incident)
    (line,) = capfd.readouterr().err.splitlines()
    assert "\x1b" not in line
    assert "\u202e" not in line
    RunLines(as_json=True).found(incident)
    assert objects(capfd.readouterr().err)[0]["summary"].startswith("\x1b")


def test_a_text_of_any_length_is_one_short_line(capfd: pytest.CaptureFixture[str]) -> None:
    RunLines().noted("x" * 1_000_000)
    assert len(capfd.readouterr().err) < 5000


def test_a_stream_that_cannot_show_a_letter_shows_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with open(writing, "w", encoding="ascii", errors="backslashreplace") as file:
        monkeypatch.setattr(sys, "stderr", file)
        RunLines().noted("ä→")
        monkeypatch.undo()
    assert os.read(reading, 100) == b"mwatch: \\xe4\\u2192\n"
    os.close(reading)


def test_without_a_standard_error_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    RunLines().noted("x")


def test_a_reader_that_has_left_is_an_error_that_the_run_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    file = open(writing, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", file)
    with pytest.raises(BrokenPipeError):
        RunLines().noted("x")
    monkeypatch.undo()
    with pytest.raises(BrokenPipeError):
        file.close()
