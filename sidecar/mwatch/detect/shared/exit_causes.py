# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What an exit code, a word of Kubernetes or the class of an exception says about the cause.

The weakest kind of evidence: it is asked only where no line of the log tells more.

One event that is told several times: by a traceback, by its last line, by a launcher.

Whether a line came after the last step: what training survived did not end it.

Lines of one file are ordered by their numbers, those of several files by their clocks alone.
"""

from __future__ import annotations

import re

from mwatch.model.finding import Cause
from mwatch.model.job import Attempt, ErrorSeen, FaultSeen, Step

RERUN_EXIT = 16
FAILED_RESULT_EXIT = 17
WORKER_FAILED = "elastic-worker-failed"
"""Id of torchelastic's line about one worker; its report may never come."""
_WORKER = re.compile(r"exitcode: (-?\d{1,5})")
_FIRST_SIGNAL, _LAST_SIGNAL = 128, 160
_WRAPPED = {216: RERUN_EXIT, 217: FAILED_RESULT_EXIT}
"""As `mwatch-run` passes them on where it acts."""
SIGABRT, _SIGTERM = 6, 15
SHOT = frozenset({4, 7, 8, 9, 11})
"""Signals that no process sends itself in Python: ILL, BUS, FPE, KILL, SEGV."""
_NUMBERS = {
    "SIGHUP": 1, "SIGINT": 2, "SIGILL": 4, "SIGABRT": 6, "SIGBUS": 7, "SIGFPE": 8, "SIGKILL": 9,
    "SIGSEGV": 11, "SIGTERM": 15,
}  # fmt: skip
_SIGNALS = {2: Cause.DELETED_BY_USER, 9: Cause.KILLED, 15: Cause.KILLED}
_CODES = {
    2: Cause.USER_ERROR,  # argparse
    RERUN_EXIT: Cause.RERUN,
    FAILED_RESULT_EXIT: Cause.HARDWARE,
    126: Cause.USER_ERROR,
    127: Cause.USER_ERROR,
}
_REASONS = (
    (re.compile(r"oom[-_ ]?kill|out of memory", re.I), Cause.OOM),
    (re.compile(r"preempt|spot|reclaim", re.I), Cause.PREEMPTED),
    (re.compile(r"suspend", re.I), Cause.SUSPENDED),
    (re.compile(r"drain|shutdown|shut down|terminat(?:ed|ing) node|NodeAffinity", re.I),
     Cause.DRAINED),
    (re.compile(r"evict|node ?lost|NotReady|unreachable|lost", re.I), Cause.LOST_POD),
    (re.compile(r"delet|cancel|scale[d -]?down", re.I), Cause.DELETED_BY_USER),
    (re.compile(r"image", re.I), Cause.IMAGE),
    (re.compile(r"unschedul|OutOf|Admission", re.I), Cause.UNSCHEDULABLE),
    (re.compile(r"volume|mount", re.I), Cause.VOLUME),
    (re.compile(r"DeadlineExceeded", re.I), Cause.FINISHED_EARLY),
)  # fmt: skip
_CASCADES = frozenset(
    {
        "DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "ChildFailedError",
        "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError",
        "BrokenPipeError", "RendezvousConnectionError", "RendezvousClosedError",
    }
)  # fmt: skip
_NAMES = frozenset(
    {
        "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError",
        "UnboundLocalError",
    }
)  # fmt: skip
_MISMATCH = re.compile(
    r"do(?:es)? not match|mismatch|checkpoint ?value|parameter group|unexpected key"
    r"|missing key(?! in checkpoint state_dict: args\b)|(?:keyword|positional) argument"
    r"|incompatible|not supported",
    re.I,
)
"""The arguments are in every checkpoint of Megatron: without them it is the file that is bad."""
_TERMINATED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?[^)]*\) is killed by signal: Terminated"
)
_FILES = frozenset(
    {
        "OSError", "IOError", "FileExistsError", "FileNotFoundError", "IsADirectoryError",
        "NotADirectoryError", "PermissionError", "TimeoutError", "BlockingIOError",
    }
)  # fmt: skip
_PROGRAMMING = _NAMES | {
    "AssertionError", "AttributeError", "IndexError", "KeyError", "NotImplementedError",
    "TypeError", "ValueError", "ZeroDivisionError",
}  # fmt: skip


def signal_of(exit_code: int | None) -> int | None:
    """The signal that ended it: torchelastic prints -9, a shell 137."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    is_shell = _FIRST_SIGNAL < exit_code < _LAST_SIGNAL
    return exit_code - _FIRST_SIGNAL if is_shell else None


def plain(exit_code: int | None, signal: str | None = None) -> int | None:
    """Without what the wrapper added to it; None for a good end."""
    if exit_code:
        return _WRAPPED.get(exit_code, exit_code)
    return -_NUMBERS.get(signal, 1) if signal else None


def exit_of_worker(text: str) -> int | None:
    """As torchelastic prints it: `failed (exitcode: -9) local_rank: 0`."""
    found = _WORKER.search(text)
    return plain(int(found[1])) if found else None


def place_of_exit(exit_code: int | None, signal: str | None) -> int:
    """How much it tells: a worker that aborts or is told to stop follows another's death."""
    code = plain(exit_code, signal)
    if code in (RERUN_EXIT, FAILED_RESULT_EXIT):
        return 0
    number = signal_of(code)
    return 1 if number in SHOT else {SIGABRT: 3, _SIGTERM: 4}.get(number or 0, 2)


def cause_of_exit(exit_code: int | None) -> Cause:
    signal = signal_of(exit_code)
    if signal is not None:
        return _SIGNALS.get(signal, Cause.CRASH)
    return _CODES.get(plain(exit_code) or 0, Cause.CRASH)


def cause_of_reason(reason: str | None) -> Cause | None:
    """Of the words of Kubernetes or the wrapper; None where they say nothing."""
    if not reason:
        return None
    return next((cause for pattern, cause in _REASONS if pattern.search(reason)), None)


def is_cascade(error: str | None) -> bool:
    """Raised because another process went away first."""
    return _last_part(error) in _CASCADES


def cause_of_error(error: str | None, message: str = "", during: str | None = None) -> Cause:
    """An exception that no entry of the catalogue knows.

    A programming error comes back with the same samples: a restart does not fix it.
    """
    name = _last_part(error)
    if during == "save" and name in _FILES:
        return Cause.STORAGE
    if _TERMINATED.search(message):
        return Cause.KILLED  # the signal was meant for all of them
    if name == "KeyboardInterrupt":
        return Cause.DELETED_BY_USER
    if name == "SignalException":
        return Cause.KILLED
    if name == "MemoryError":
        return Cause.OOM
    return Cause.USER_ERROR if name in _PROGRAMMING else Cause.CRASH


def cause_of_load_error(error: str | None, message: str) -> Cause:
    """While a checkpoint was being loaded: a damaged file raises all sorts of things.

    Settings that differ from the checkpoint's fail with an older one too.
    """
    is_ours = _last_part(error) in _NAMES or _MISMATCH.search(message)
    return Cause.USER_ERROR if is_ours else Cause.CHECKPOINT


def _last_part(error: str | None) -> str:
    return (error or "").rpartition(".")[2]


_SAME_TEXT = 40
REPORTS = ("elastic", "launcher")
"""Kinds of errors by which a launcher tells of an end, the more telling first."""


def explains(fault: FaultSeen, seen: ErrorSeen) -> bool:
    """Of whichever rank: all ranks may raise the same."""
    error = seen.error
    text = fault.fault.text
    if error.message and error.message[:_SAME_TEXT] in text:
        return True
    return not error.message and bool(error.error) and str(error.error) in text


def place_of_report(seen: ErrorSeen) -> tuple[int, int, float]:
    error = seen.error
    return REPORTS.index(error.kind), place_of_exit(error.exit_code, error.signal), seen.at


def is_after(last: Step | None, at: float, file: str, line: int) -> bool:
    """Whether something was printed after the newest iteration line."""
    if last is None:
        return True
    return line > last.line if file == last.file else at > last.at


def has_trained(attempt: Attempt) -> bool:
    """It has done a step of its own; the probe tells an iteration before that."""
    return bool(attempt.steps) or attempt.first_iteration is not None
