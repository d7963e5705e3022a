# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Conversions that are stopped where a test wants it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mwatch_gpt.data.conversion import ConversionJob
from mwatch_gpt.data.encoding import EncodingOptions
from mwatch_gpt.data.tokenizers import TokenizerChoice
from mwatch_gpt.data.writer import ConversionState


class Stop(Exception):
    pass


def job(source: Path, prefix: Path, **more: bool) -> ConversionJob:
    return ConversionJob(
        (str(source),),
        (f"{prefix}_text_document",),
        EncodingOptions(TokenizerChoice()),
        save_seconds=0,
        **more,
    )


def stop_after(saves: int) -> Callable[[ConversionState], None]:
    left = [saves]

    def progress(_: ConversionState) -> None:
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


def nothing(_: ConversionState) -> None:
    return
