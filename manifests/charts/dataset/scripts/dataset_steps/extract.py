# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step 2: every file as JSON lines."""

from __future__ import annotations

import os
from typing import Any

from dataset_steps.listing import Entry, open_groups, raw_path, read_listing
from dataset_steps.made import forget, made, set_made
from dataset_steps.pool import each_of
from dataset_steps.problem import Problem
from dataset_steps.say import say, size
from dataset_steps.settings import Settings
from dataset_steps.unpack import PLAIN, unpack


def extract(settings: Settings) -> None:
    groups = open_groups(settings, read_listing(settings))
    packed = [each for group in groups for each in group.entries if _is_packed(settings, each)]
    todo = [each for each in packed if made(text_path(settings, each), _inputs(each)) is None]
    say(f"extract: {len(todo)} of {len(packed)} files to unpack")

    def one(entry: Entry) -> int:
        return _extract(settings, entry)

    written = each_of("extract", todo, settings.workers, one)
    say(f"extract: {len(written)} files, {size(sum(written))}")


def text_path(settings: Settings, entry: Entry) -> str:
    """Of the JSON lines: what needs no unpacking stays where it is."""
    if not _is_packed(settings, entry):
        return raw_path(settings, entry)
    return os.path.join(settings.folder, "text", f"{entry['name']}.jsonl")


def _is_packed(settings: Settings, entry: Entry) -> bool:
    return not raw_path(settings, entry).endswith(PLAIN)


def _inputs(entry: Entry) -> list[list[Any]]:
    return [[entry["name"], entry.get("size"), entry.get("changed")]]


def _extract(settings: Settings, entry: Entry) -> int:
    source, target = raw_path(settings, entry), text_path(settings, entry)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part = f"{target}.part"
    try:
        with open(part, "wb") as file:
            unpack(source, file)
    except Problem:
        # A file that came whole and does not open may have been damaged on this disk.
        if "path" not in entry:
            forget(source)
        raise
    number = os.path.getsize(part)
    if number == 0:
        raise Problem(f"{source}: there is nothing in it")
    os.replace(part, target)
    set_made(target, _inputs(entry))
    return number
