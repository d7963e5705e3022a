# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Detect progress and the end of a run in lines that no recogniser reads.

Progress is a count that rises; the end is a phrase by which a trainer reports that it is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAX_LINE = 600
_COMPLAINS = re.compile(
    r"\^C|error|fail|fatal|panic|critical|abort|exception|can(?:'|no)t|could ?n[o']t|unable"
    r"|denied|refused|invalid|unrecogni|not found|no such|timed? ?out|killed|evict|preempt"
    r"|reclaim|lost"
    r"|unreachable|unresponsive|stuck|hang|hung|exceed|insufficient|unschedul|not ready"
    r"|notready|unhealthy|BackOff|shut ?down|dead|ECC|Xid|corrupt|warning +[A-Z]\w+ "
    r"|NCCL WARN|out of memory|oom|fault|terminat|drain|\bdown\b|interrupt|waiting for"
    r"|pending|NotAvail|not enough|exhaust|fallen|unavailable|mismatch|OutOf[a-z]|no progress"
    r"|\bstall",
    re.I,
)
_DONE = re.compile(
    r"\b(?:epochs|steps|iterations|training) (?:are |is |was |has )?"
    r"(?:completed?|completes|finished|done|over)\b"
    r"|\btraining ends\b|\bdone training\b|\btrained model has been saved\b",
    re.I,
)
_STOPS_EARLY = re.compile(
    r"\bdid not improve in the last \d{1,9} records\b|\bearly stopping (?:triggered|at epoch)\b",
    re.I,
)
_TRIALS_RUN = re.compile(r"^Number of trials: [^\n]{0,60}\b[1-9]\d{0,5} RUNNING\b|^Result for \w")
_COUNTED = (
    re.compile(
        r"(?:epoch|step|iter(?:ation)?|round|batch|episode|update)s?\W{0,4}(\d{1,12})\b", re.I
    ),
    re.compile(r"\[ {0,12}(\d{1,12})/\d{2,12}\]"),
    re.compile(r"^ {0,16}(\d{1,15}) +\d{1,15} +(?:u?int\d{1,2}|half|b?float\d{0,2}|double) "),
    re.compile(r"(?:^|[\s>:])(\d{1,12})\s{1,4}(?:image|example|sample|token)s/s(?:ec)?: \d"),
    re.compile(
        r"^(?!.{0,80}(?:ing|[Mm]ap|[Ff]ilter|[Ss]hards?|[Tt]okenize)\b).{0,120}\d%\|[^|\n]{0,200}"
        r"\| *(\d{1,12})/\d{2,12} \[[^\]\n]{0,80}(?:it/s|s/it)"
    ),
)
_FILLED = re.compile(r"[\s\u2580-\u259f#=>]+")
"""The fill of a progress bar, and the blanks beside it."""
_DIGITS = re.compile(r"\d+")  # digits of a time, a rank or a process before the count


def is_completed(text: str) -> bool:
    """Whether the line is a trainer's report of its own end."""
    return (_DONE.search(text) or _STOPS_EARLY.search(text)) is not None


def counted_until(lines: Iterable[tuple[int, str]]) -> int:
    """Return the last but one line in which a count rises, or the last Ray Tune report of running
    trials; 0: none.

    Counts are in formats that no recogniser reads. The last but one is used because two more counts
    after an error show that the error was caught.
    """
    counts: dict[str, int] = {}
    risen = [0, 0]
    for number, line in lines:
        text = line[:_MAX_LINE]
        if _TRIALS_RUN.search(text):
            risen = [number, number]
        if _COMPLAINS.search(text):
            continue
        is_risen = False
        for found in filter(None, (each.search(text) for each in _COUNTED)):
            before = _FILLED.sub(" ", text[: found.start(1)]).rstrip()
            form, count = _DIGITS.sub("0", before), int(found[1])
            is_risen = is_risen or count > counts.get(form, count)
            counts[form] = max(count, counts.get(form, count))
        if is_risen:
            risen = [risen[1], number]
    return risen[0]
