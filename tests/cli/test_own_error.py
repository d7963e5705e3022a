# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No traceback reaches a user: an error of mwatch itself is one line, and a file to report."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mwatch.cli.main import report_own

BREAKS = """
import sys
import mwatch.cli.program
def broken():
    raise LookupError("token=ghp_0123456789abcdefghijABCDEFGHIJ012345")
mwatch.cli.program.run_command = broken
from mwatch.cli.main import main
sys.argv[1:] = {words!r}
main()
"""


def broken(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BREAKS.format(words=list(words))]
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def test_an_error_of_ours_is_one_line_and_a_private_file(tmp_path: Path) -> None:
    done = broken("diagnose", "x.log", TMPDIR=str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert done.returncode == 70
    (line,) = done.stderr.splitlines()
    assert line.startswith("mwatch: this is an error of mwatch, not of yours: LookupError at ")
    assert line.endswith(f"; please report it with {file}")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "Traceback" in file.read_text()
    assert "ghp_" not in file.read_text() + done.stderr


def test_where_no_file_can_be_written_it_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(**_: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkstemp", full)
    monkeypatch.setattr(sys, "argv", ["mwatch", "diagnose"])
    assert report_own(LookupError("x")) == 70
    assert capsys.readouterr().err == (
        "mwatch: this is an error of mwatch, not of yours: LookupError; please report it with what "
        "MWATCH_TRACEBACK=1 prints\n"
    )


@pytest.mark.parametrize("words", [("controller",), ("diagnose",)])
def test_in_a_pod_or_when_asked_the_traceback_is_printed(words: tuple[str, ...]) -> None:
    done = broken(*words, MWATCH_TRACEBACK="" if words[0] == "controller" else "1")
    assert "Traceback (most recent call last)" in done.stderr
    assert done.returncode == 70
