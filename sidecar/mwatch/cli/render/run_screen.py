# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched run on a terminal: the trainer's output scrolls above a fixed panel.

The panel shows where the run is, what is wrong with it, and what was done. Control characters in
the output are escaped.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from mwatch.cli.formats import action_text, culprit_text, duration
from mwatch.cli.terminal import plain
from mwatch.state.goodput.ledger import time_spent

if TYPE_CHECKING:
    from mwatch.engine.engine import Assessment
    from mwatch.engine.incidents import Incident
    from mwatch.model.decision import Decision
    from mwatch.model.job import Job
    from mwatch.watch.watcher import RunEnd

_EVENTS = 6
_SEVERITY_STYLES = {"info": "cyan", "warning": "yellow", "critical": "bold red"}
_MAX_LINES = 400
"""Lines of the trainer's output printed at one time."""
_MAX_COLUMNS = 2000
_MAX_REST = 1 << 16
"""Bytes kept of a line that does not end."""


class RunScreen:
    def __init__(self, name: str, mode: str, where: str) -> None:
        self._console = Console(file=sys.stderr, highlight=False, emoji=False, markup=False)
        self._title = f"mwatch run {name} ({mode})"
        self._where = where
        self._events: deque[Text] = deque(maxlen=_EVENTS)
        self._started = time.monotonic()
        self._rows: list[Text] = [Text("starting", "dim")]
        self._rest = b""
        self._live = Live(
            self._panel(), console=self._console, auto_refresh=False, transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._live.start()

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        start = "" if resume_from is None else f" from checkpoint {resume_from}"
        self._print_event(f"attempt {number} starts{start}", "green")

    def looked(self, job: Job, assessment: Assessment) -> None:
        self._rows = list(_rows(job, assessment))
        self._live.update(self._panel(), refresh=True)

    def found(self, incident: Incident) -> None:
        finding = incident.finding
        culprit = culprit_text(finding.culprit)
        name = f" ({culprit})" if culprit else ""
        style = _SEVERITY_STYLES[finding.severity.value]
        self._print_event(f"{incident.cause.value}: {finding.summary}{name}", style)

    def closed(self, incident: Incident) -> None:
        self._print_event(f"{incident.cause.value} is over", "green")

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        would = "" if is_real else "would "
        self._print_event(f"{would}{action_text(decision)}: {decision.reason}", "bold magenta")

    def noted(self, text: str) -> None:
        self._print_event(text, "yellow")

    def printed(self, data: bytes) -> None:
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[-_MAX_REST:]
        if newline:
            self._print(whole.split(b"\n"))

    def _print(self, lines: list[bytes]) -> None:
        """Print all at once: each print redraws the panel."""
        left_out = len(lines) - _MAX_LINES
        texts = [_shown(line) for line in lines[-_MAX_LINES:]]
        if left_out > 0:
            texts.insert(0, f"... {left_out} lines not shown; they are in the log ...")
        self._console.print(Text("\n".join(texts)), soft_wrap=True)

    def ended(self, ended: RunEnd) -> None:
        self._live.stop()
        if self._rest:
            self._print([self._rest])
        for each in self._events:
            self._console.print(each)
        style = "bold green" if ended.is_recovered else "bold red"
        self._console.print(Text(f"mwatch: {plain(ended.summary)}", style))

    def _print_event(self, text: str, style: str) -> None:
        stamp = time.strftime("%H:%M:%S")
        self._events.append(Text.assemble((f"{stamp} ", "dim"), (plain(text), style)))
        self._live.update(self._panel(), refresh=True)

    def _panel(self) -> RenderableType:
        elapsed = duration(time.monotonic() - self._started)
        body = Group(*self._rows, *self._events)
        footer = Text(f"{elapsed} · {self._where}", "dim")
        return Panel(body, title=self._title, subtitle=footer, title_align="left",
                     subtitle_align="right", border_style="cyan")  # fmt: skip


def _shown(line: bytes) -> str:
    """Keep the last state of a progress bar."""
    last = line.rstrip(b"\r").rpartition(b"\r")[2]
    return plain(last[: 4 * _MAX_COLUMNS].decode("utf-8", "replace"))[:_MAX_COLUMNS]


def _rows(job: Job, assessment: Assessment) -> list[Text]:
    attempt = job.attempt
    step = attempt.steps[-1] if attempt.steps else None
    total = job.layout.total_iterations
    place = "-" if attempt.iteration is None else f"{attempt.iteration}"
    rows = [Text.assemble(
        ("attempt ", "dim"), f"{attempt.number}  ", ("phase ", "dim"), f"{attempt.phase.value}  ",
        ("iteration ", "dim"), place + (f"/{total}" if total else ""),
    )]  # fmt: skip
    if step is not None:
        losses = "  ".join(f"{plain(name)} {value:.4f}" for name, value in step.losses.items())
        parts = [losses or "no loss", "" if step.seconds is None else f"{step.seconds:.3f} s/step"]
        if step.loss_scale is not None:
            parts.append(f"loss scale {step.loss_scale:g}")
        if step.grad_norm is not None:
            parts.append(f"grad norm {step.grad_norm:.3f}")
        rows.append(Text("  ".join(part for part in parts if part)))
    saved = [each.iteration for each in job.checkpoints.values() if not each.is_abandoned]
    goodput = time_spent(job, assessment.at).goodput
    rows.append(Text.assemble(
        ("checkpoint ", "dim"), str(max(saved, default="-")), ("  goodput ", "dim"),
        "-" if goodput is None else f"{goodput:.0%}",
    ))  # fmt: skip
    for finding in assessment.findings[:3]:
        rows.append(Text(plain(finding.summary), _SEVERITY_STYLES[finding.severity.value]))
    return rows
