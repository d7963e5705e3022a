# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch parse` as a person runs it: a real process, its output and its exit code."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mwatch.runtime.files import CHUNK
from support.builders.events import log, megatron_line
from support.runs.commands import mwatch

PARSE = (sys.executable, "-m", "mwatch", "parse")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


run = partial(mwatch, "parse")


def records(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def trainer_log(tmp_path: Path) -> Path:
    path = tmp_path / "trainer.log"
    path.write_text(log("training ...", *(megatron_line(number) for number in (10, 20, 30))))
    return path


def test_events_go_to_standard_output_and_a_summary_to_standard_error(trainer_log: Path) -> None:
    done = run(trainer_log)
    assert done.returncode == 0
    steps = [record for record in records(done) if record["event"] == "iteration"]
    assert [(r["iteration"], r["line"], r["file"]) for r in steps] == [
        (10, 2, str(trainer_log)), (20, 3, str(trainer_log)), (30, 4, str(trainer_log)),
    ]  # fmt: skip
    assert "4 lines" in done.stderr
    assert "iteration 3" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_is_read(arguments: tuple[str, ...]) -> None:
    done = run(*arguments, stdin=log(megatron_line(7)))
    assert (done.returncode, [record["iteration"] for record in records(done)]) == (0, [7])


def test_several_files_are_read_in_turn(trainer_log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(log(megatron_line(99)))
    steps = [r for r in records(run(trainer_log, other)) if r["event"] == "iteration"]
    assert [record["iteration"] for record in steps] == [10, 20, 30, 99]


def test_since_line_leaves_earlier_events_out(trainer_log: Path) -> None:
    done = run("--since-line", "3", trainer_log)
    assert [(record["line"], record["covers"]) for record in records(done)] == [(3, 10), (4, 10)]


def test_a_flavour_can_be_named(trainer_log: Path) -> None:
    found = records(run("--flavour", "deepspeed", trainer_log))
    assert {record.get("flavour") for record in found if "flavour" in record} == {"deepspeed"}


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 2, one line that says what to do (besides the summary), and no traceback."""
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if " lines, " not in line]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    refused(run(tmp_path / "nowhere.log"), "nowhere.log", "check the path")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    refused(run(tmp_path), str(tmp_path), "folder")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_bytes(b"")
    refused(run(tmp_path / "empty.log"), "empty")


def test_a_compressed_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log.gz"
    path.write_bytes(gzip.compress(log(megatron_line()).encode()))
    done = run(path)
    assert done.returncode == 0
    assert '"iteration"' in done.stdout


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log.gz"
    path.write_bytes(b"\x1f\x8b" + bytes(99))
    refused(run(path), "trainer.log.gz", "damaged")


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_an_unreadable_file_is_refused(trainer_log: Path, follow: tuple[str, ...]) -> None:
    trainer_log.chmod(0)
    refused(run(*follow, trainer_log, is_unprivileged=True), "trainer.log", "mode")


def test_a_file_that_shrinks_gives_what_was_there_and_is_refused(tmp_path: Path) -> None:
    """The first piece has more events than a pipe holds: the command waits for its reader."""
    path = tmp_path / "trainer.log"
    count = CHUNK // 512
    path.write_text(log(*(f"{megatron_line(number):<511}" for number in range(1, 3 * count))))
    with subprocess.Popen(
        [*PARSE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert next_step(process) == (1, 1)
        path.write_text("")
        out, errors = process.stdout.read(), process.stderr.read()
    assert [json.loads(line)["line"] for line in out.splitlines()] == list(range(2, count + 1))
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    refused(done, "trainer.log", "shrank", "use --follow")


@pytest.mark.parametrize(
    "arguments",
    [("--flavour", "fortran"), ("--since-line", "0"), ("--since-line", "x"), ("--colour",)],
)
def test_a_wrong_option_is_a_usage_error(arguments: tuple[str, ...], trainer_log: Path) -> None:
    done = run(*arguments, trainer_log)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_catalogue_is_refused(trainer_log: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("[[fault]]\nid = 7\n")
    refused(run("--catalogue", own, trainer_log), "own.toml")


def test_following_a_folder_is_refused(tmp_path: Path) -> None:
    refused(run("--follow", tmp_path), str(tmp_path))


def test_a_file_name_that_is_no_text_is_no_obstacle(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"trainer-\xff.log")
    with open(path, "wb") as file:
        file.write(log(megatron_line(7)).encode())
    done = subprocess.run(
        [*map(os.fsencode, PARSE), path], capture_output=True, env=ENVIRONMENT, timeout=60,
        check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert (done.returncode, json.loads(done.stdout)["iteration"]) == (0, 7)


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text(log(*(megatron_line(number) for number in range(1, 20_000))))
    with subprocess.Popen(
        [*PARSE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"event":"iteration"')
        process.stdout.close()
        errors = process.stderr.read().decode()
        process.wait(timeout=60)
    assert "Traceback" not in errors
    assert "Broken" not in errors
    assert "Exception" not in errors


@contextmanager
def following(*files: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*PARSE, "--follow", *map(str, files)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=ENVIRONMENT,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def next_step(process: subprocess.Popen[str]) -> tuple[int, int]:
    assert process.stdout is not None
    record = json.loads(process.stdout.readline())
    return record["iteration"], record["line"]


def test_following_goes_through_a_rotation_and_ends_with_a_summary(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_text(log(megatron_line(10)))
    with following(path) as process:
        assert next_step(process) == (10, 1)
        with path.open("a") as file:
            file.write(log(megatron_line(20)))
        assert next_step(process) == (20, 2)
        path.rename(tmp_path / "trainer.log.1")
        path.write_text(log(megatron_line(30)))
        assert next_step(process) == (30, 1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "iteration 3" in errors
    assert "Traceback" not in errors


def test_following_waits_for_a_file_that_is_not_there_yet(tmp_path: Path) -> None:
    first, later = tmp_path / "first.log", tmp_path / "later.log"
    first.write_text(log(megatron_line(1)))
    with following(first, later) as process:
        assert next_step(process) == (1, 1)
        later.write_text(log(megatron_line(2)))
        assert next_step(process) == (2, 1)
