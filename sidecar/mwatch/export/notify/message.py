# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The text of a notification: verdict, culprit, action and a link or command, without secrets.

There is one message per stage of an incident. Messages queued together are sent as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from mwatch.model.decision import Action, describe_action
from mwatch.model.incident import IncidentRecord, IncidentStage
from mwatch_trainer.scrub.scrubber import scrub_text

_MAX_TEXT = 600
_MAX_TOGETHER = 10


class Level(IntEnum):
    """Severity of a message, in ascending order."""

    RECOVERED = 0
    WARNING = 1
    CRITICAL = 2


class Message(NamedTuple):
    title: str
    body: str
    level: Level


def incident_message(
    record: IncidentRecord, stage: IncidentStage, *, link: str, is_act: bool, is_critical: bool
) -> Message:
    """`link`: a URL or a command. `is_act`: mwatch may act on this run."""
    # Scrub before and after composing: a key that fills its line is not recognized in a sentence.
    record = replace(record, summary=scrub_text(record.summary), reason=scrub_text(record.reason))
    culprit = None if record.culprit is None else record.culprit.label(" ")
    lines = [
        record.summary,
        f"culprit: {culprit}" if culprit else "",
        _outcome(record) if stage is IncidentStage.RECOVERED else _action(record, stage, is_act),
        f"see: {link}",
    ]
    level = Level.CRITICAL if is_critical else Level.WARNING
    if stage is IncidentStage.RECOVERED:
        level = Level.RECOVERED
    body = "\n".join(_cut(scrub_text(each)) for each in lines if each)
    return Message(_cut(scrub_text(_title(record, stage))), body, level)


def together(messages: Sequence[Message]) -> Message:
    """Combine queued messages into one; the first are complete, the rest only counted."""
    if len(messages) == 1:
        return messages[0]
    parts = [f"{each.title}\n{each.body}" for each in messages[:_MAX_TOGETHER]]
    left = len(messages) - len(parts)
    if left:
        parts.append(f"and {left} more; list all jobs: mwatch status")
    title = f"{messages[0].title}, and {len(messages) - 1} more"
    return Message(title, "\n\n".join(parts), max(each.level for each in messages))


def _title(record: IncidentRecord, stage: IncidentStage) -> str:
    cause, attempt = record.cause.value.replace("_", " "), f"attempt {record.attempt}"
    if stage is IncidentStage.OPENED:
        return f"{record.run}: {cause} ({attempt})"
    if stage is IncidentStage.RECOVERED:
        return f"{record.run}: recovered from {cause} ({attempt})"
    return f"{record.run}: {_done(record)} after {cause} ({attempt})"


def _action(record: IncidentRecord, stage: IncidentStage, is_act: bool) -> str:
    """Describe the action: taken, pending, only proposed in observe mode, or none."""
    if record.action is Action.NONE:
        return f"action: none; {record.reason}" if record.reason else "action: none"
    if not is_act:
        return f"action: none in mode observe; mwatch would {_done(record)}: {record.reason}"
    until = "" if stage is IncidentStage.ACTED else ", unless it recovers before"
    return f"action: {_done(record)}{until}: {record.reason}"


def _outcome(record: IncidentRecord) -> str:
    if not record.is_carried_out:
        return "action: none was taken"
    lost = record.lost_iterations
    cost = "" if lost is None else f"; {lost} iterations were repeated"
    return f"action: {_done(record)}{cost}"


def _done(record: IncidentRecord) -> str:
    return describe_action(record.action, record.resume_from, record.resume_reason)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"
