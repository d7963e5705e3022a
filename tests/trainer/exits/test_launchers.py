# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every launcher's report of a death is read, with the signals of one table."""

from __future__ import annotations

import signal

import pytest

from mwatch_trainer.exits.launchers import TRIGGERS, read_reports
from mwatch_trainer.exits.signal_table import BY_TEXT, TABLE, name_of, number_of, signal_of

REPORTS = [
    ("ERROR:composer.cli.launcher:Rank 3 crashed with exit code -11.", -11, 3),
    ("Global rank 0 (PID 1234) exited with code -9", -9, 0),
    ("[ERROR] [launch.py:322] ['python3', '-u', 'a.py'] exits with return code = -9", -9, None),
    ("[INFO] [launch.py:351:main] Process 1235 exits with return code = 1", 1, None),
    ("srun: error: node-3: task 5: Killed", -9, None),
    ("srun: error: node-3: tasks 4-7,9: Segmentation fault (core dumped)", -11, None),
    ("srun: error: node-3: task 5: Exited with exit code 137", 137, None),
    ("mpirun noticed that process rank 3 with PID 0 on node a exited on signal 9 (Killed)", -9, 3),
    ("prterun noticed that process rank 1 with PID 7 on node a exited on signal 6", -6, 1),
    ("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)", -7, None),
    ("CalledProcessError: Command '['python', 'a.py']' died with <Signals.SIGKILL: 9>.", -9, None),
    ("CalledProcessError: Command '['python', 'a.py']' returned non-zero exit status 1.", 1, None),
    ("torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGSEGV",
     -11, None),
    ("x1-c5.cm: rank 4 died from signal 11 and dumped core", -11, 4),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "rank"), REPORTS)
def test_a_launchers_report_is_read(line: str, code: int, rank: int | None) -> None:
    (report,) = read_reports(line)
    assert (report.code, report.rank) == (code, rank)
    assert any(trigger in line for trigger in TRIGGERS)


@pytest.mark.parametrize(
    "line",
    [
        "[INFO] [launch.py:351:main] Process 1235 exits with return code = 0",
        "srun: error: Unable to create step for job 7: Memory required by task is not available",
        "Command '['nvidia-smi']' returned non-zero exit status 9.",
        "the run terminated with exit code 3 of a helper",
    ],
)
def test_a_good_end_or_another_command_is_not_a_report(line: str) -> None:
    assert list(read_reports(line)) == []


def test_the_table_has_the_numbers_of_linux() -> None:
    assert all(signal.Signals[entry.name] == entry.number for entry in TABLE)
    assert all(signal.strsignal(entry.number) in BY_TEXT for entry in TABLE if entry.number < 16)


def test_a_signal_is_found_by_number_name_word_and_exit_code() -> None:
    assert number_of("9") == number_of("SIGKILL") == number_of("Killed") == 9
    assert [signal_of(code) for code in (-9, 137, 139, 1, 216, 0, None)] == [
        9, 9, 11, None, None, None, None,
    ]  # fmt: skip
    assert (name_of(7), name_of(40)) == ("SIGBUS", "signal 40")
