# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who took the run away, by what a cluster or a person printed among the last lines of a log.

The signal or the lost pod that follows is only how it ended. Somebody deletes or suspends the job,
or the node is drained, evicted or consolidated away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.detect.shared.words import MAX_LINE, Complaint
from mwatch.model.cause import Cause

_SUSPENDED = re.compile(
    r"\b\w{0,40}(?:[Jj]ob|JobSet|[Ww]orkload)\b[^\n]{0,80} is suspended\b"
    r"|^\S{1,80}\s{2,}Suspended\s{2,}\S|\bType: {1,20}Suspended\b|\"suspend\": ?true"
    r"|\bEvictedDueTo\w{1,40}|\bPodsReadyTimeout\b"
)
_DELETED = re.compile(
    r"\bkubectl\b[^|\n]{0,120}\sdelete\s|^(?:[\w.]{1,60} )?\"[\w.-]{1,80}\" deleted\b|\bscancel \d"
    r"|\bverb=delete\b|\b\w{0,20}[Jj]obs?(?:\.[\w.]{1,60})? \\?\"[\w.-]{1,80}\\?\" not found\b"
)
_ONE_POD = re.compile(
    r"\bkubectl\b[^|\n]{0,120}\sdelete\s+(?:-\S+ (?:[\w-]+ )?){0,4}(?:pods?|po)\b"
    r"|^pods? \"[\w.-]{1,80}\" (?:force )?deleted\b"
)
_DRAINED = re.compile(
    r"\bDisrupt(?:ing Node\b|ionTerminating\b)|\bFailedDraining\b|\bkubectl\b[^|\n]{0,80}\sdrain\s"
    r"|\bEvicted by drain\b|\bNodeNotSchedulable\b"
    r"|\bEvicted pod: (?:Underutilized|Empty|Drifted|Expired)|\bbecause it was drained\b"
    r"|\bdrain(?:ed)? (?:detected|via)\b|\bnode/\S{1,80} (?:cordoned|drained)\b"
    r"|\b[Cc]ordoned node\b"
    r"|\b(?:[Cc]onsolidating|[Dd]eprovisioning(?: node)?) via \w[\w ]{0,30}, terminating \d"
)
_LAST_STATE = re.compile(r"(?:Last )?State:\s+Terminated\b")
_OOM_KILLED = re.compile(r"Reason:\s+OOMKilled\b")
_KINDS = (
    (_SUSPENDED, Cause.SUSPENDED),
    (_DELETED, Cause.DELETED_BY_USER),
    (_DRAINED, Cause.DRAINED),
)


def killed_for_memory(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """`kubectl describe` shows that the container was killed for its memory. That is of now,
    also where the log of that container was pasted below it."""
    is_last = False
    for number, line in lines:
        text = line[:MAX_LINE].strip()
        if is_last and _OOM_KILLED.match(text):
            return Complaint(Cause.OOM, number, text)
        is_last = _LAST_STATE.match(text) is not None
    return None


def pod_deleted(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """Somebody deleted a pod of a job and not the job: the others wait for it."""
    for number, line in lines:
        if _ONE_POD.search(line[:MAX_LINE]):
            return Complaint(Cause.LOST_POD, number, line.strip())
    return None


def taken_away(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """The first line that says so, of the first kind that any line does; None: no line does."""
    lines = list(lines)
    for pattern, cause in _KINDS:
        for number, line in lines:
            if pattern.search(line[:MAX_LINE]):
                return Complaint(cause, number, line.strip())
    return None
