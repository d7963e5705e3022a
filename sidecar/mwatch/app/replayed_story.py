# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The story of a recorded run: what the recorder kept, with what was concluded at its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mwatch.app.report import AttemptReport, Report
from mwatch.app.story import Story, StoryRecorder
from mwatch.app.story_parts import AttemptStory, Clock, short

MAX_SOURCES = 256


def told(recorder: StoryRecorder, report: Report) -> Story:
    """`recorder` listened to the replay that `report` came from."""
    for incident in report.incidents:
        recorder.incident(incident)
    story = recorder.story(is_over=True)
    said = report.verdict
    return replace(
        story,
        clock=Clock(is_relative=report.is_relative),
        cause=said.cause.value,
        summary=short(said.summary),
        attempts=tuple(_concluded(story.attempts, report.attempts)),
        notes=tuple(short(note) for note in report.notes),
        sources=report.files[:MAX_SOURCES],
    )


def _concluded(
    attempts: Iterable[AttemptStory], reports: Iterable[AttemptReport]
) -> Iterable[AttemptStory]:
    known = {each.number: each for each in reports}
    for each in attempts:
        said = known.get(each.number)
        if said is None or said.cause.value == each.cause:
            yield each
        else:
            yield replace(each, cause=said.cause.value, summary=short(said.summary))
