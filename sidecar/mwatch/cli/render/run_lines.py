# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Events of a watched run as lines: `mwatch run` on stderr, a sidecar or controller on stdout.

With `as_json` each line is one object. Each line is flushed at once to keep its place among the
trainer's own output, which is passed through unchanged. Lines of a sidecar have a timestamp, for
`kubectl logs`, and are rate-limited: a flapping source must not fill a node's disk. After a burst
only a few lines per minute are printed; the next line has the number of lines left out.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mwatch.cli.shared.formats import action_text, culprit_text, duration
from mwatch.cli.shared.json_output import VERSION, envelope, rfc3339
from mwatch.cli.shared.terminal import plain

if TYPE_CHECKING:
    from mwatch.engine.engine import Assessment
    from mwatch.engine.incidents import Incident
    from mwatch.model.cause import Cause
    from mwatch.model.decision import Decision
    from mwatch.model.job import Job
    from mwatch.run.folder import RunFolder
    from mwatch.watch.watcher import RunEnd


MAX_TEXT = 4000


def end_rows(ended: RunEnd, folder: RunFolder) -> Iterator[tuple[str, str]]:
    """The summary at the end of a local run: a name and a text for each line."""
    yield "verdict", f"{ended.summary} (exit code {ended.exit_code})"
    yield "report", f"mwatch report {shlex.quote(os.path.relpath(folder.path))}"
    try:
        kept = sorted(each for each in folder.incidents.iterdir() if each.is_dir())
    except OSError:
        kept = []
    if not kept:
        yield "evidence", "none: there was no incident"
        return
    more = f" and {len(kept) - 1} more" if len(kept) > 1 else ""
    yield "evidence", f"{os.path.relpath(kept[-1])}{more}"


class RunLines:
    def __init__(self, *, as_json: bool = False, folder: RunFolder | None = None) -> None:
        self._as_json = as_json
        self._folder = folder

    def began(self, number: int, resume_from: int | None, reason: str) -> None:
        start = "" if resume_from is None else f" from checkpoint {resume_from}"
        because = f": {_without_number(reason, resume_from)}" if reason else ""
        self._print(
            f"attempt {number} starts{start}{because}",
            event="attempt", attempt=number, resume_from=resume_from, reason=reason,
        )  # fmt: skip

    def looked(self, job: Job, assessment: Assessment) -> None:
        """Print nothing: lines are for events."""

    def found(self, incident: Incident) -> None:
        finding = incident.finding
        culprit = culprit_text(finding.culprit)
        name = f"; {culprit}" if culprit else ""
        self._print(
            f"{finding.severity.value}: {_name(incident.cause)}: {finding.summary}{name}",
            event="incident", attempt=incident.attempt, cause=incident.cause.value,
            severity=finding.severity.value, detector=finding.detector, summary=finding.summary,
            since_iteration=finding.since_iteration, culprit=culprit,
        )  # fmt: skip

    def closed(self, incident: Incident) -> None:
        lasted = (incident.closed_at or incident.detected_at) - incident.detected_at
        self._print(
            f"{_name(incident.cause)} is over after {duration(lasted)}",
            event="over", attempt=incident.attempt, cause=incident.cause.value, seconds=lasted,
        )  # fmt: skip

    def acted(self, decision: Decision, is_real: bool, evidence: str | None) -> None:
        would = "" if is_real else "would "
        culprit = culprit_text(decision.finding.culprit) if decision.finding else None
        because = _without_number(decision.resume_reason, decision.resume_from)
        why = f" ({because})" if because else ""
        saved = f"; evidence in {evidence}" if evidence else ""
        self._print(
            f"{would}{action_text(decision)}{why}: {decision.reason}{saved}",
            event="action", attempt=decision.attempt, action=decision.action.value,
            is_done=is_real, cause=decision.cause.value, culprit=culprit,
            resume_from=decision.resume_from, reason=decision.reason,
            resume_reason=decision.resume_reason, evidence=evidence,
        )  # fmt: skip

    def noted(self, text: str) -> None:
        self._print(text, event="note", summary=text)

    def printed(self, data: bytes) -> None:
        """Print nothing: the trainer's output was already passed through."""

    def ended(self, ended: RunEnd) -> None:
        self._print(
            f"ended: {ended.summary} (exit code {ended.exit_code})",
            event="end", exit_code=ended.exit_code, summary=ended.summary,
        )  # fmt: skip
        if self._folder is not None and not self._as_json:
            for name, text in list(end_rows(ended, self._folder))[1:]:
                self._print(f"{name}: {text}")

    def _print(self, text: str, **record: Any) -> None:
        if self._as_json:
            line = json.dumps(record | envelope("event"))
        else:
            line = f"mwatch: {plain(text)[:MAX_TEXT]}"
        if sys.stderr is not None:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _name(cause: Cause) -> str:
    return cause.value.replace("_", " ")


def _without_number(reason: str, checkpoint: int | None) -> str:
    """Remove a prefix that repeats the number of the checkpoint."""
    return reason.removeprefix(f"checkpoint {checkpoint}: ")


_BURST = 200.0
_PER_SECOND = 0.1


class SidecarLines(RunLines):
    def __init__(
        self,
        *,
        as_json: bool = False,
        clean: Callable[[str], str] = str,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(as_json=as_json)
        self._clean = clean
        self._wall = wall
        self._clock = clock
        self._tokens = _BURST
        self._at = clock()
        self._left_out = 0

    def _print(self, text: str, **record: Any) -> None:
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._at) * _PER_SECOND, _BURST)
        self._at = now
        if self._tokens < 1.0:
            self._left_out += 1
            return
        self._tokens -= 1.0
        moment = rfc3339(self._wall())
        if self._as_json:
            more = {"left_out": self._left_out} if self._left_out else {}
            head = {"version": VERSION, "kind": "event"}
            line = json.dumps({"time": moment, **record, **more, **head})
        else:
            note = f" ({self._left_out} lines left out)" if self._left_out else ""
            line = f"{moment} {plain(text)[:MAX_TEXT]}{note}"
        self._left_out = 0
        if sys.stdout is not None:
            sys.stdout.write(self._clean(line) + "\n")
            sys.stdout.flush()
