# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of `mwatch-run`, and what it says to a wrong one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import mwatch
from mwatch_trainer.__main__ import VERSION
from mwatch_trainer.wrapper.options import DEFAULT_GRACE_SECONDS, Options, parse
from support.runs.wrapper_runs import LIMIT_SECONDS, command, environ, run


def given(*arguments: str, **variables: str) -> Options:
    return parse(arguments, variables, VERSION)


def test_the_command_stays_as_it_is() -> None:
    words = ("torchrun", "--", "--act", "x.py", "--dir", "")
    assert given("--", *words).command == words


def test_observing_is_the_default_and_kills_nobody() -> None:
    options = given("--", "true")
    assert (options.mode, options.grace_seconds) == ("observe", None)
    assert (options.with_probe, options.with_node_facts) == (True, True)


def test_acting_is_asked_for_by_flag_or_variable() -> None:
    assert given("--act", "--", "true").mode == "act"
    options = given("--", "true", MWATCH_MODE="act")
    assert (options.mode, options.grace_seconds) == ("act", DEFAULT_GRACE_SECONDS)
    assert given("--grace", "2.5", "--", "true").grace_seconds == 2.5


def test_the_folder_is_a_flag_or_a_variable(tmp_path: Path) -> None:
    assert given("--", "true", MWATCH_DIR=str(tmp_path)).directory == str(tmp_path)
    assert given("--dir", "x", "--", "true", MWATCH_DIR="y").directory == str(Path("x").absolute())


BAD = [
    ([], "no command"),
    (["true"], "unrecognized arguments: true"),
    (["--"], "no command"),
    (["--", ""], "no command"),
    (["--actt", "--", "true"], "unrecognized arguments: --actt"),
    (["--ac", "--", "true"], "unrecognized arguments: --ac"),
    (["--grace", "soon", "--", "true"], "'soon' is not a number of seconds"),
    (["--grace", "nan", "--", "true"], "'nan' is not a number of seconds"),
    (["--grace", "-1", "--", "true"], "--grace"),
    (["--log-bytes", "1", "--", "true"], "'1' is not a number of bytes"),
    (["--log-bytes", "1e9", "--", "true"], "'1e9' is not a number of bytes"),
    (["--scrub-pattern", "(", "--", "true"], "'(' is not a pattern"),
    (["--dir", "--", "true"], "--dir"),
]


@pytest.mark.parametrize(("arguments", "why"), BAD)
def test_a_wrong_command_line_is_reported_in_a_line(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        given(*arguments)
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith("mwatch-run: ")
    assert why in said.splitlines()[0]


def test_a_wrong_mode_in_the_environment_names_the_right_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        given("--", "true", MWATCH_MODE="acting")
    assert "MWATCH_MODE is 'acting'; it can be observe or act" in capsys.readouterr().err


def test_a_broken_pattern_for_secrets_in_the_environment_is_reported_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert given("--", "true", MWATCH_SCRUB="corp-[0-9]+\n\n").command == ("true",)
    with pytest.raises(SystemExit, match="2"):
        given("--", "true", MWATCH_SCRUB="fine\n(broken")
    assert "MWATCH_SCRUB: '(broken' is not a pattern" in capsys.readouterr().err


def test_help_has_an_example_and_the_version_is_that_of_mwatch() -> None:
    def said(flag: str) -> str:
        words = command(options=[flag])[:-1]
        done = subprocess.run(
            words, env=environ(), capture_output=True, timeout=LIMIT_SECONDS, check=True
        )
        assert done.stderr == b""
        return done.stdout.decode()

    assert "mwatch-run --dir /mwatch -- torchrun" in said("--help")
    assert said("--version").strip() == f"mwatch-run {mwatch.__version__}"
    assert mwatch.__version__ == VERSION


def test_garbage_in_the_folder_does_not_keep_the_command_from_running(tmp_path: Path) -> None:
    for name in ("attempt.json", "decision.json", "control", "node", "dumps", "probe", "site"):
        (tmp_path / name).write_bytes(b"\xff garbage")
    (tmp_path / "trainer.log").mkdir()
    ended = run(tmp_path, "sh", "-c", "echo ran; exit 9")
    assert (ended.code, ended.out) == (9, b"ran\n")
    assert b"Traceback" not in ended.err


def test_a_folder_that_cannot_be_written_does_not_either(tmp_path: Path) -> None:
    words = command("sh", "-c", "echo ran; exit 9", options=["--dir", "/proc/self/mwatch"])
    done = subprocess.run(
        words, env=environ(), capture_output=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, done.stdout) == (9, b"ran\n")
    assert b"Traceback" not in done.stderr
