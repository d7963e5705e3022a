# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the last lines of a recorded log show of saves, in whatever form a program prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.detect.shared.words import MAX_LINE, Complaint
from mwatch.model.cause import Cause

_FEW = 2  # failed saves, between which the run went on
_FAILED = re.compile(
    r"\b(?:unable|fail(?:s|ed|ure)?|could ?n[o']t|cannot|error|exception)\b.{0,80}"
    r"\b(?:sav(?:e|es|ed|ing)|check ?points?|ckpts?|commit)\b"
    r"|\b(?:sav(?:e|es|ed|ing)|check ?points?|ckpts?)\b.{0,120}"
    r"\b(?:fail(?:s|ed|ure)?|not (?:finali[sz]ed|saved|written)|error)\b",
    re.I,
)
_LOADS = re.compile(r"\b(?:load|restor|resum|read)(?:e|ed|ing)?\b", re.I)
_SAVED = re.compile(
    r"\b(?:successfully saved|saved (?:the )?(?:model |full )?(?:state|check ?point|ckpt|to)|"
    r"finali[sz]ed successfully|save (?:finished|completed|done))\b",
    re.I,
)


def saves_fail(lines: Iterable[tuple[int, str]]) -> Complaint | None:
    """One save after the other fails while the run goes on, and none has succeeded since."""
    failed: list[tuple[int, str]] = []
    for number, line in lines:
        text = line[:MAX_LINE]
        if _SAVED.search(text):
            failed = []
        elif _FAILED.search(text) and not _LOADS.search(text):
            is_same = bool(failed) and number - failed[-1][0] <= 1
            failed += [] if is_same else [(number, line.strip())]
    return Complaint(Cause.CHECKPOINT_OVERDUE, *failed[0]) if len(failed) >= _FEW else None
