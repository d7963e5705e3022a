# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What launchers print about the end of a training process.

Parses Composer, DeepSpeed, Kubeflow's operator, srun, mpirun (Open MPI, MPICH, PALS), torch's spawn
and programs that run training with Python's subprocess (accelerate, deepspeed, launch scripts).
torchrun's reports are blocks of several lines, which the callers parse. When one process fails, a
launcher ends the others, so only its first report names the cause.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple

from mwatch_trainer.exits.signal_table import BY_TEXT, number_of


class LauncherReport(NamedTuple):
    code: int  # negative for a signal
    text: str
    rank: int | None = None
    pid: int | None = None
    host: str | None = None


_WORDS = "|".join(sorted(BY_TEXT, key=len, reverse=True))
_REPORT = re.compile(
    r"(?:Rank (?P<rank>\d{1,7}) crashed with exit code (?P<code>-?\d{1,9})"
    r"|[Gg]lobal rank (?P<rank2>\d{1,7}) \(PID (?P<pid>\d{1,9})\)"
    r" exited with code (?P<code2>-?\d{1,9})"
    r"|Pod: [\w.-]{1,200} exited with code (?P<code7>\d{1,3})"
    r"|(?:Process (?P<pid2>\d{1,9}) )?exits with return code = (?P<code3>-?\d{1,9})"
    r"|srun: error: (?P<host>[\w.-]{1,80}): tasks? [\d,-]{1,200}: "
    rf"(?:Exited with exit code (?P<code4>\d{{1,3}})|(?P<signal>{_WORDS}))"
    r"|noticed that process rank (?P<rank3>\d{1,7}) with PID (?P<pid3>\d{1,9})"
    r" on node (?P<host2>[\w.-]{1,80}) exited on signal (?P<signal2>\d{1,2})"
    r"|TERMINATED WITH THE EXIT STRING: [^\n(]{1,60}\(signal (?P<signal3>\d{1,2})\)"
    r"|Command [^\n]{1,4000} died with <Signals\.(?P<signal4>SIG\w{1,10}): \d{1,2}>"
    r"|process \d{1,7} terminated with signal (?P<signal5>SIG\w{1,10})"
    r"|(?P<host3>[\w.-]{1,80}): rank (?P<rank4>\d{1,7}) died from signal (?P<signal6>\d{1,2})"
    r"|process \d{1,7} terminated with exit code (?P<code5>\d{1,3})"
    r"|Command [^\n]{0,300}(?:python|torchrun|accelerate|deepspeed)[^\n]{0,4000}"
    r" returned non-zero exit status (?P<code6>\d{1,3}))"
)
TRIGGERS = (
    "crashed with exit code", "exited with code ", "exits with return code =", "srun: error: ",
    " exited on signal ", "TERMINATED WITH THE EXIT STRING", "died with <Signals.",
    " terminated with signal SIG", " terminated with exit code ", "returned non-zero exit status ",
    " died from signal ",
)  # fmt: skip
"""Every line with a report contains one of these."""


def read_reports(text: str) -> Iterator[LauncherReport]:
    """Yield the process failures that this line reports; exit code 0 is not a failure."""
    if not any(trigger in text for trigger in TRIGGERS):
        return
    for found in _REPORT.finditer(text):
        groups = found.groupdict()
        code = _first(groups, "code", 7)
        signal = _first(groups, "signal", 6)
        number = None if signal is None else number_of(signal)
        value = int(code) if code is not None else -(number or 0)
        if value:
            rank, pid = _first(groups, "rank", 4), _first(groups, "pid", 3)
            yield LauncherReport(
                value,
                found.group(0),
                None if rank is None else int(rank),
                None if pid is None else int(pid),
                _first(groups, "host", 3),
            )


def _first(groups: dict[str, str | None], name: str, count: int) -> str | None:
    keys = (name, *(f"{name}{number}" for number in range(2, count + 1)))
    return next((groups[key] for key in keys if groups[key] is not None), None)
