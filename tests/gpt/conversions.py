# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Conversions that are stopped where a test wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mwatch_gpt.conversion import Job
from mwatch_gpt.encoding import Wanted
from mwatch_gpt.tokenizer_files import Choice
from mwatch_gpt.unfinished import State


class Stop(Exception):
    pass


def job(source: Path, prefix: Path, **more: bool) -> Job:
    return Job(
        (str(source),), (f"{prefix}_text_document",), Wanted(Choice()), save_seconds=0, **more
    )


def stop_after(saves: int) -> Callable[[State], None]:
    left = [saves]

    def progress(_: State) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stop

    return progress


def nothing(_: State) -> None:
    return
