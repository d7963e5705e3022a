# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Chunks of one stream into whole lines, over the gaps that the pump marks.

A line that a gap cut is left out on both sides: half of a number reads like a number. A line that
never ends is cut at a blank, so that a word of it, which may be a secret, stays whole.
"""

from __future__ import annotations

import re

from mwatch_trainer.pump import MARK_TAIL

MAX_LINE_BYTES = 1 << 18
_LONGEST_WORD = 1 << 12
_ROOM_FOR_MARK = 128
_BLANKS = (b" ", b"\t", b"\r")


class Lines:
    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._gap = re.compile(re.escape(self._mark) + rb"([0-9]+)" + re.escape(MARK_TAIL))
        self._pending = b""
        self._is_cut = False
        """The start of the line that comes is lost."""
        self.missed = 0
        """Bytes in gaps so far."""

    def feed(self, data: bytes) -> bytes:
        """The whole lines so far, each with its newline."""
        end = data.rfind(b"\n") + 1
        if not end:
            self._pending += data
            return self._cut_endless() if len(self._pending) > MAX_LINE_BYTES else b""
        whole = self._pending + data[:end]
        self._pending = data[end:]
        if self._is_cut or self._mark in whole:
            whole = self._without_gaps(whole)
        return whole + self._cut_endless() if len(self._pending) > MAX_LINE_BYTES else whole

    def finish(self) -> bytes:
        """The last line where it has no newline; it gets one."""
        rest, self._pending = self._pending, b""
        if not rest or self._is_cut or self._mark in rest:
            return b""
        return rest + b"\n"

    def _without_gaps(self, whole: bytes) -> bytes:
        kept = []
        at = 0
        for gap in self._gap.finditer(whole):
            kept.append(self._tidied(whole[at : gap.start()], is_end_lost=True))
            self.missed += int(gap.group(1))
            self._is_cut = True
            at = gap.end()
        kept.append(self._tidied(whole[at:], is_end_lost=False))
        return b"".join(kept)

    def _tidied(self, text: bytes, is_end_lost: bool) -> bytes:
        if self._is_cut:
            end = text.find(b"\n") + 1
            if not end:
                return b""
            text = text[end:]
            self._is_cut = False
        return text[: text.rfind(b"\n") + 1] if is_end_lost else text

    def _cut_endless(self) -> bytes:
        pending = self._pending
        if self._mark in pending:  # its tail has not come yet
            self._pending = pending[pending.find(self._mark) :]
            return b""
        if self._is_cut:
            self._pending = pending[-_ROOM_FOR_MARK:]
            return b""
        end = 1 + max(pending.rfind(each) for each in _BLANKS)
        if len(pending) - end > _LONGEST_WORD:
            end = len(pending) - _ROOM_FOR_MARK
        self._pending = pending[end:]
        return pending[:end] + b"\n"
