# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Styled lines: on a terminal with colours, in a pipe as they are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mwatch.cli.shared.terminal import Line, show

LINES: list[Line] = [
    [("verdict", "bold red"), ("  ", ""), ("a" * 300, "")],
    [],
    [("ends with spaces   ", "dim")],
    [("bell \x07 and\ttab", ""), ("   ", "")],
    [],
]


def test_in_a_pipe_a_line_is_neither_styled_nor_cut(capsys: pytest.CaptureFixture[str]) -> None:
    show(LINES)
    expected = f"verdict  {'a' * 300}\n\nends with spaces\nbell \\x07 and tab\n"
    assert capsys.readouterr().out == expected


def test_on_a_terminal_a_line_is_styled_and_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    show(LINES[:1])
    shown = capsys.readouterr().out
    assert shown.startswith("\x1b[1;31mverdict\x1b[0m  aaa") and "a" * 80 not in shown


def test_a_pipe_needs_no_colours() -> None:
    code = (
        "import sys; from mwatch.cli.main import main\n"
        "sys.argv[1:] = ['diagnose', '-']\n"
        "try: main()\nexcept SystemExit: print('rich.console' in sys.modules)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, input="one line\n")
    assert done.stdout.endswith("\nFalse\n"), done.stderr
