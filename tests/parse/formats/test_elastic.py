# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of launchers: torchrun's root cause and restarts, Composer's crashes."""

from __future__ import annotations

import pytest

from mwatch.model.event import Error, Exit
from support.builders.events import log, many, megatron_line, none, one, steps

LAUNCHER = (
    "Traceback (most recent call last):",
    '  File "/venv/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    '  File "/venv/torch/distributed/launcher/api.py", line 317, in launch_agent',
    "    raise ChildFailedError(",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
)
BAR = "=" * 60
LINE = "-" * 60


def entry(rank: int, code: int, traceback: str, file: str = "<N/A>") -> list[str]:
    return [
        "  time      : 2026-11-15_00:40:13",
        "  host      : node-3.cluster",
        f"  rank      : {rank} (local_rank: {rank % 8})",
        f"  exitcode  : {code} (pid: 962)",
        f"  error_file: {file}",
        f"  traceback : {traceback}",
    ]


def report(root: list[str], others: list[str] | None = None) -> str:
    failures = ["[1]:", *others] if others else ["  <NO_OTHER_FAILURES>"]
    return log(
        *LAUNCHER, BAR, "pretrain_gpt.py FAILED", LINE, "Failures:", *failures, LINE,
        "Root Cause (first observed failure):", "[0]:", *root, BAR,
    )  # fmt: skip


NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def test_the_root_cause_is_one_error_and_the_launcher_adds_none() -> None:
    event = one(report(entry(8, 1, NO_TRACEBACK), entry(9, 1, NO_TRACEBACK)), Error)
    assert (event.kind, event.rank, event.exit_code, event.pid) == ("elastic", 8, 1, 962)
    assert (event.host, event.signal, event.timestamp) == (
        "node-3.cluster", None, "2026-11-15T00:40:13",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "name"), [(-9, "SIGKILL"), (-15, "SIGTERM"), (-11, "SIGSEGV"), (-7, "SIGBUS")]
)
def test_a_signal_has_its_name(code: int, name: str) -> None:
    event = one(report(entry(3, code, f"Signal {-code} ({name}) received by PID 962")), Error)
    assert (event.exit_code, event.signal, event.rank) == (code, name, 3)


@pytest.mark.parametrize("code", [16, 17])
def test_the_exit_codes_of_the_rerun_machine_are_visible_here_only(code: int) -> None:
    assert one(report(entry(0, code, NO_TRACEBACK)), Error).exit_code == code


WORKER = [
    "Traceback (most recent call last):",
    '    File "/venv/errors/__init__.py", line 355, in wrapper',
    "      return f(*args, **kwargs)",
    '    File "/w/train.py", line 12, in main',
    '      raise ValueError("bad batch")',
    "  ValueError: bad batch",
    "  ",
]


def test_a_traceback_from_the_error_file_is_part_of_the_block() -> None:
    root = [*entry(8, 1, WORKER[0], "/tmp/torchelastic_x/attempt_0/0/error.json"), *WORKER[1:]]
    event = one(report(root), Error)
    assert (event.kind, event.rank, event.error, event.message) == (
        "elastic", 8, "ValueError", "bad batch",
    )  # fmt: skip


def test_the_root_cause_is_found_behind_the_tracebacks_of_other_failures() -> None:
    others = [*entry(9, 1, WORKER[0], "/tmp/e/1/error.json"), *WORKER[1:]]
    found = many(report(entry(8, -9, "Signal 9 (SIGKILL) received by PID 962"), others), Error)
    elastic = [event for event in found if event.kind == "elastic"]
    assert [(event.rank, event.exit_code) for event in elastic] == [(8, -9)]


def test_a_report_behind_a_prefix_is_read() -> None:
    text = report(entry(8, -9, "Signal 9 (SIGKILL) received by PID 962"))
    event = one(log(*(f"worker-0: {line}" for line in text.splitlines())), Error)
    assert (event.rank, event.signal) == (8, "SIGKILL")


def test_a_restart_shows_its_number_and_why() -> None:
    text = log(
        "E1115 00:40:13.529000 871 torch/distributed/elastic/multiprocessing/api.py:986] failed"
        " (exitcode: -9) local_rank: 0 (pid: 962) of binary: /venv/bin/python3",
        "I1115 00:40:13.600000 871 torch/distributed/elastic/agent/server/api.py:952] [default]"
        " Worker group FAILED. 3/3 attempts left; will restart worker group",
        megatron_line(21, stamp="2026-11-15 00:41:00.000001"),
    )
    event = one(text, Error)
    assert (event.kind, event.restart_count, event.exit_code, event.signal) == (
        "restart", 1, -9, "SIGKILL",
    )  # fmt: skip
    assert [(step.first_of_process, step.covers) for step in steps(text)] == [(True, 1)]


def test_the_second_restart_is_number_two() -> None:
    line = "[INFO] [default] Worker group FAILED. 2/3 attempts left; will restart worker group"
    event = one(log(line), Error)
    assert (event.restart_count, event.exit_code) == (2, None)


@pytest.mark.parametrize(
    ("line", "rank", "code", "signal", "pid"),
    [
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", 2, -7, "SIGBUS", None),
        ("ERROR:composer.cli.launcher:Rank 0 crashed with exit code -11.", 0, -11, "SIGSEGV", None),
        ("Global rank 0 (PID 208865) exited with code -11", 0, -11, "SIGSEGV", 208865),
        ("Global rank 3 (PID 208865) exited with code 1", 3, 1, None, 208865),
    ],
)
def test_the_launcher_of_composer_names_rank_and_code(
    line: str, rank: int, code: int, signal: str | None, pid: int | None
) -> None:
    event = one(log(line), Error)
    assert (event.kind, event.rank, event.exit_code) == ("launcher", rank, code)
    assert (event.signal, event.pid) == (signal, pid)


def test_a_worker_that_failed_without_a_restart_is_no_event_of_its_own() -> None:
    line = "failed (exitcode: 1) local_rank: 0 (pid: 962) of binary: /venv/bin/python3"
    assert many(log(line), Error) == []


def test_the_shells_last_word_is_a_launcher_error_with_the_signal() -> None:
    error = one("exit code 137\n", Error)
    assert (error.kind, error.exit_code, error.signal) == ("launcher", 137, "SIGKILL")
    assert one("command terminated with exit code 1\n", Error).exit_code == 1


def test_an_exit_code_of_zero_is_a_good_bye_not_an_error() -> None:
    none("exit code 0\n", Error)
    assert one("exit code 0\n", Exit).reason == "status"


def test_an_exit_code_inside_a_sentence_is_somebody_elses() -> None:
    none("worker 3 said: exit code 137 is bad\n", Error)
