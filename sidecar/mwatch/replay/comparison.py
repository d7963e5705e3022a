# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Find a second run that a user pasted below the failed one for comparison.

"The same with another setting works" is not the outcome of the first run, so its lines are left
out. Such a run begins with a comment or with a command with another setting in front, makes
progress and has no errors, and the lines above it end with a failure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mwatch.classifier.classifier import is_progress
from mwatch.replay.unread_progress import is_completed

_MAX_LINE = 500
_ABOVE = 15
"""Maximum lines between the failure and the second run."""
_COMMENT = re.compile(
    r"^(?:#|//) {0,4}\w.{0,200}\b(?:same|identical|without|instead|one commit before)\b", re.I
)
_GOES_ON = re.compile(
    r"\b(?:again|after|later|now|next|restart\w*|resum\w*|retr\w+|second|fixed|new)\b", re.I
)
"""Words by which a user shows how the same run continued."""
_COMMAND = re.compile(r"^\S{0,80}[$#>] ((?:\w{1,80}=\S{1,200} ){0,8})(\S.*)")
_PROGRAM = re.compile(r"(?<!\S)(?:\./\S{1,200}|[\w./-]{1,200}\.(?:py|sh))(?!\S)")
_FAILED = re.compile(
    r"\w(?:error|exception)\b|\berror:|traceback|segmentation|aborted|core dumped|\^C|killed"
    r"|illegal|[:= ][-+]?nan\b(?! iter)",
    re.I,
)
_WELL = re.compile(r"\b(?:Avg bus bandwidth|works|worked|passed)\b", re.I)


def comparison_from(lines: Sequence[str]) -> int | None:
    """Return the index of the line that begins the second run; None: there is none."""
    texts = [line[:_MAX_LINE] for line in lines]
    failures = [index for index, text in enumerate(texts) if _FAILED.search(text)]
    last = failures[-1] if failures else len(texts)
    programs: set[str] = set()
    commands: set[tuple[str, str]] = set()
    for index, text in enumerate(texts):
        command = _COMMAND.match(text)
        named = set(_PROGRAM.findall(command[2])) if command else set()
        settings = command[1] if command else ""
        is_again = command is not None and (settings, command[2]) in commands
        is_tried = settings and named & programs and not is_again
        is_comment = _COMMENT.match(text) is not None and not _GOES_ON.search(text)
        if index > last and (is_comment or is_tried) and _ends_there(texts[last + 1 : index]):
            return index if _does_well(texts[index + 1 :]) else None
        programs |= named
        commands |= {(settings, command[2])} if command else set()
    return None


def _ends_there(after: Sequence[str]) -> bool:
    """Whether the run did not continue after its failure."""
    return len(after) <= _ABOVE and not any(map(is_progress, after))


def _does_well(rest: Sequence[str]) -> bool:
    return any(is_progress(text) or is_completed(text) or _WELL.search(text) for text in rest)
