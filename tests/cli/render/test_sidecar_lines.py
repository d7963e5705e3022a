# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar says: few lines, each with its time, and bounded for months."""

from __future__ import annotations

import pytest

from mwatch.cli.render.run_lines import SidecarLines
from support.builders.volume import ManualClock
from support.repository.json_schema import read_json


def lines_of(text: str) -> list[str]:
    return text.splitlines()


def test_a_line_has_its_time_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    lines = SidecarLines(wall=lambda: 0.0, clean=lambda text: text.replace("s3cret", "[gone]"))
    lines.noted("the key is s3cret\nand more")
    assert capsys.readouterr().out == "1970-01-01T00:00:00.000+00:00 the key is [gone] and more\n"


def test_as_json_each_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    SidecarLines(as_json=True, wall=lambda: 0.0).noted("hello")
    (line,) = lines_of(capsys.readouterr().out)
    assert read_json(line, "event") == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "event": "note",
        "summary": "hello",
        "version": 1,
        "kind": "event",
    }


def test_a_source_that_comes_and_goes_for_months_is_bounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = ManualClock()
    lines = SidecarLines(wall=clock.wall, clock=clock)
    for _ in range(5000):
        lines.noted("lost")
    said = lines_of(capsys.readouterr().out)
    assert 100 < len(said) < 500
    clock.now += 60
    lines.noted("found")
    (line,) = lines_of(capsys.readouterr().out)
    assert f"found ({5000 - len(said)} lines left out)" in line
    clock.now += 60
    lines.noted("lost")
    assert "left out" not in capsys.readouterr().out, "told once"
