# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Text for people and files, without secrets: what the commands put between a log and their output.

A log that was recorded without mwatch holds whatever the trainer printed.
"""

from __future__ import annotations

from mwatch_trainer.scrub import scrub_text


def clean(text: str) -> str:
    return scrub_text(text)
