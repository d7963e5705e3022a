# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of a recorded log is what was printed: a search for it finds the line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from mwatch.replay.replay import ReplayRequest, replay

NOW = 2_000_000_000.0
LINE = (
    " [2026-11-16 14:15:{second:02d}] iteration {step:8d}/    1000 | consumed samples: {done:12d} |"
    " elapsed time per iteration (ms): 1000.0 | learning rate: 1.000E-04 |"
    " global batch size:    64 | lm loss: {loss} | loss scale: 1.0 | grad norm: 0.912 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def log() -> list[str]:
    return [
        LINE.format(second=n, step=n, done=64 * n, loss="nan" if n > 30 else "4.512345E+00")
        for n in range(1, 41)
    ]


@pytest.mark.parametrize("name", ["train.log", "train.log.gz"])
def test_an_iteration_line_is_quoted_as_it_was_printed(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    text = "\n".join(log()) + "\n"
    file.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    report = replay(ReplayRequest([str(file)]), NOW)
    (finding, *_) = report.findings
    quoted = [each for each in finding.evidence if each.line]
    assert quoted
    assert all(each.text == log()[(each.line or 0) - 1].strip() for each in quoted)
    (incident, *_) = report.incidents
    assert incident.voices[0].evidence[0].text in text


def test_a_last_line_without_a_newline_is_quoted_too(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text("\n".join(log()[:31]))
    report = replay(ReplayRequest([str(file)]), NOW)
    assert report.findings[0].evidence[-1].text == log()[30].strip()


def test_a_log_of_a_folder_is_quoted_too(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("\n".join(log()) + "\n")
    report = replay(ReplayRequest([str(tmp_path)]), NOW)
    evidence = report.findings[0].evidence[0]
    assert (evidence.file, evidence.text) == ("train.log", log()[(evidence.line or 0) - 1].strip())
