# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched run on a terminal: the trainer's output scrolls above a fixed status area.

A thread draws, and nothing waits for it: a terminal that is slow, or stopped with Ctrl-S, blocks
neither the trainer nor the watcher. Lines that cannot be shown in time are replaced by a note; they
are in the log. Escape sequences of the trainer are removed, other control characters are escaped.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, TextIO, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from mwatch.cli.render.run_lines import end_rows
from mwatch.cli.render.run_status import SEVERITY_STYLES, Status, area, status_of
from mwatch.cli.shared.formats import action_text, culprit_text, duration
from mwatch.cli.shared.terminal import plain
from mwatch.parse.lines.line import ANSI

if TYPE_CHECKING:
    from mwatch.engine.engine import Assessment
    from mwatch.engine.incidents import Incident
    from mwatch.model.decision import Decision
    from mwatch.model.job import Job
    from mwatch.run.assemble import ShownRun
    from mwatch.watch.watcher import RunEnd

_EVENTS = 6
_ROWS_OF_OTHERS = 14
"""Rows reserved for the rest of the status area and some lines of the trainer."""
_MAX_LINES = 400
"""Maximum lines of the trainer's output printed in one frame."""
_MAX_COLUMNS = 2000
_MAX_REST = 1 << 16
"""Maximum bytes kept of an unfinished line."""
_FRAME_SECONDS = 1.0
_END_SECONDS = 5.0
"""Time limit to print the last lines on a slow terminal."""
_MOST_FAILURES = 8


class RunScreen:
    def __init__(self, run: ShownRun, mode: str) -> None:
        file = cast(IO[str], _Unbuffered(sys.stderr))
        self._console = Console(file=file, highlight=False, emoji=False, markup=False)
        self._run = run
        self._title = f"mwatch run {run.folder.name} ({mode})"
        self._started = time.monotonic()
        self._changed = threading.Condition()
        self._status: Status | None = None
        self._events: deque[Text] = deque(maxlen=_EVENTS)
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._left_out = 0
        self._rest = b""
        self._is_new = False
        self._ended: RunEnd | None = None
        self._thread = threading.Thread(target=self._draw, name="screen", daemon=True)
        self._thread.start()

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        start = "" if resume_from is None else f" from checkpoint {resume_from}"
        self._add_event(f"attempt {number} starts{start}", "green")

    def looked(self, job: Job, assessment: Assessment) -> None:
        newest = self._run.snapshots()
        status = status_of(job, assessment, newest[0]) if newest else None
        with self._changed:
            self._status = status or self._status
            self._wake()

    def found(self, incident: Incident) -> None:
        finding = incident.finding
        culprit = culprit_text(finding.culprit)
        name = f" ({culprit})" if culprit else ""
        style = SEVERITY_STYLES[finding.severity.value]
        self._add_event(f"{incident.cause.value}: {finding.summary}{name}", style)

    def closed(self, incident: Incident) -> None:
        self._add_event(f"{incident.cause.value} is over", "green")

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        would = "" if is_real else "would "
        self._add_event(f"{would}{action_text(decision)}: {decision.reason}", "bold magenta")

    def noted(self, text: str) -> None:
        self._add_event(text, "yellow")

    def printed(self, data: bytes) -> None:
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        lines = whole.split(b"\n") if newline else []
        with self._changed:
            self._rest = rest[-_MAX_REST:]
            self._add_lines(lines)

    def _add_lines(self, lines: Sequence[bytes]) -> None:
        self._left_out += max(0, len(self._lines) + len(lines) - _MAX_LINES)
        self._lines.extend(map(_shown, lines[-_MAX_LINES:]))

    def ended(self, ended: RunEnd) -> None:
        with self._changed:
            if self._rest:
                self._add_lines([self._rest])
                self._rest = b""
            self._ended = ended
            self._wake()
        self._thread.join(_END_SECONDS)

    def _add_event(self, text: str, style: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        with self._changed:
            self._events.append(Text.assemble((f"{stamp} ", "dim"), (plain(text), style)))
            self._wake()

    def _wake(self) -> None:
        self._is_new = True
        self._changed.notify()

    def _draw(self) -> None:
        """Body of the thread: draw changes until the run has ended or the terminal is gone."""
        failures, is_over = 0, False
        live = Live(
            self, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip
        with suppress(OSError):
            live.start()
            while not is_over:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_new, _FRAME_SECONDS)
                    self._is_new, is_over = False, self._ended is not None
                try:
                    if failures < _MOST_FAILURES:
                        self._draw_frame(live)
                except OSError:
                    raise
                except Exception:
                    failures += 1
        with suppress(OSError):
            live.stop()
            self._print_end()

    def _draw_frame(self, live: Live) -> None:
        with self._changed:
            texts, left_out = list(self._lines), self._left_out
            self._lines.clear()
            self._left_out = 0
        if left_out:
            texts.insert(0, f"... {left_out} lines not shown; they are in the log ...")
        if texts:  # printing also redraws the status area
            self._console.print(Text("\n".join(texts)), soft_wrap=True)
        else:
            live.refresh()

    def __rich__(self) -> RenderableType:
        """The current status area."""
        with self._changed:
            return self._area()

    def _area(self) -> RenderableType:
        size = self._console.size
        most = min(_EVENTS, max(1, (size.height - _ROWS_OF_OTHERS) // 2))
        return area(
            self._status,
            title=f"{self._title}, {duration(time.monotonic() - self._started)}",
            page=self._run.page or f"not served; {self._run.where}",
            events=[each.copy() for each in self._events][-most:],
            line=_shown(self._rest),
            width=size.width,
            is_ascii=self._console.options.ascii_only,
        )

    def _print_end(self) -> None:
        ended = self._ended
        if ended is None:
            return
        for each in self._events:
            self._console.print(each)
        style = "bold green" if ended.is_recovered else "bold red"
        for name, text in end_rows(ended, self._run.folder):
            shown = style if name == "verdict" else ""
            line = Text.assemble((f"{name:10}", "dim"), (plain(text), shown))
            self._console.print(line, soft_wrap=True)


class _Unbuffered(io.TextIOBase):
    """A terminal without Python's buffering: at exit, Python would wait for a thread that is
    blocked in a buffered write."""

    def __init__(self, stream: TextIO) -> None:
        self._fd = stream.fileno()
        self._encoding = stream.encoding
        self._parts: list[str] = []

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str, /) -> int:
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        data = "".join(self._parts).encode(self._encoding, "replace")
        self._parts.clear()
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                select.select([], [self._fd], [])


def _shown(line: bytes) -> str:
    """The unfinished line as text; of a progress bar, only its last state."""
    last = line.rstrip(b"\r").rpartition(b"\r")[2][: 4 * _MAX_COLUMNS]
    return plain(ANSI.sub(b"", last).decode("utf-8", "replace"))[:_MAX_COLUMNS]
