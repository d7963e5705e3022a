# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Conversions that are stopped where a test wants it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mwatch_gpt.data.conversion import Job
from mwatch_gpt.data.encoding import Wanted
from mwatch_gpt.data.tokenizers import Choice
from mwatch_gpt.data.unfinished import State


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


def stop_at_name(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """Before a finished file gets its name that ends so; `monkeypatch.undo` lets it go on."""
    rename = os.replace

    def stops(old: Path, new: Path) -> None:
        if str(new).endswith(ending):
            raise Stop
        rename(old, new)

    monkeypatch.setattr("mwatch_gpt.data.writer.os.replace", stops)


def nothing(_: State) -> None:
    return
