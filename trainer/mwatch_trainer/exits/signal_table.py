# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that end a process: number, name, the text that shells and launchers print, and meaning.

The wrapper, the parser of launcher reports and the sidecar share this table.
"""

from __future__ import annotations

from typing import NamedTuple

SENT = "sent"  # sent by the kernel (out of memory), a scheduler, a launcher or a person
INTERRUPTED = "interrupted"  # sent by a person
CRASHED = "crashed"  # caused by an error in the process itself
SHELL_BASE = 128
_LAST = 64


class SignalEntry(NamedTuple):
    number: int
    name: str
    text: str  # as strsignal() and shells print it
    meaning: str


TABLE = (
    SignalEntry(1, "SIGHUP", "Hangup", SENT),
    SignalEntry(2, "SIGINT", "Interrupt", INTERRUPTED),
    SignalEntry(3, "SIGQUIT", "Quit", SENT),
    SignalEntry(4, "SIGILL", "Illegal instruction", CRASHED),
    SignalEntry(5, "SIGTRAP", "Trace/breakpoint trap", CRASHED),
    SignalEntry(6, "SIGABRT", "Aborted", CRASHED),
    SignalEntry(7, "SIGBUS", "Bus error", CRASHED),
    SignalEntry(8, "SIGFPE", "Floating point exception", CRASHED),
    SignalEntry(9, "SIGKILL", "Killed", SENT),
    SignalEntry(10, "SIGUSR1", "User defined signal 1", SENT),
    SignalEntry(11, "SIGSEGV", "Segmentation fault", CRASHED),
    SignalEntry(12, "SIGUSR2", "User defined signal 2", SENT),
    SignalEntry(13, "SIGPIPE", "Broken pipe", CRASHED),
    SignalEntry(14, "SIGALRM", "Alarm clock", SENT),
    SignalEntry(15, "SIGTERM", "Terminated", SENT),
    SignalEntry(24, "SIGXCPU", "CPU time limit exceeded", SENT),
    SignalEntry(25, "SIGXFSZ", "File size limit exceeded", CRASHED),
    SignalEntry(31, "SIGSYS", "Bad system call", CRASHED),
)
BY_NUMBER = {entry.number: entry for entry in TABLE}
BY_NAME = {entry.name: entry for entry in TABLE}
BY_TEXT = {entry.text: entry for entry in TABLE}


def name_of(number: int) -> str:
    entry = BY_NUMBER.get(number)
    return f"signal {number}" if entry is None else entry.name


def signal_of(exit_code: int | None) -> int | None:
    """Return the signal that ended the process: Python prints -9, a shell 137."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - SHELL_BASE
    return number if 0 < number <= _LAST else None


def number_of(name: str) -> int | None:
    """Parse `9`, `SIGKILL` or `Killed`; None if it is not a signal."""
    if name.isdigit():
        return int(name) if 0 < int(name) <= _LAST else None
    entry = BY_NAME.get(name) or BY_TEXT.get(name)
    return None if entry is None else entry.number
