# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step 3: the files of a group become one. Blank lines go; a last line without its end gets one.

The first and the last line of each file are read as JSON; all others are read by the next step,
which stops at the first that is none.
"""

from __future__ import annotations

import json
import os
from typing import Any

from dataset_steps.extract import text_path
from dataset_steps.listing import Group, open_groups, read_listing
from dataset_steps.made import made, set_made
from dataset_steps.pool import each_of
from dataset_steps.problem import Problem, Settled
from dataset_steps.say import say
from dataset_steps.settings import Settings


def concatenate(settings: Settings) -> None:
    groups = open_groups(settings, read_listing(settings))
    todo = [each for each in groups if made(joined_path(settings, each), each.inputs) is None]
    say(f"concatenate: {len(todo)} of {len(groups)} files to join")

    def one(group: Group) -> int:
        return _join(settings, group)

    written = each_of("concatenate", todo, settings.workers, one)
    say(f"concatenate: {len(written)} files, {sum(written)} documents")


def joined_path(settings: Settings, group: Group) -> str:
    return os.path.join(settings.folder, "joined", f"{group.name}.jsonl")


def joined_note(settings: Settings, group: Group) -> dict[str, Any]:
    note = made(joined_path(settings, group), group.inputs)
    if note is None:
        raise Problem(
            f"{joined_path(settings, group)}: is not whole; the step concatenate makes it"
        )
    return note


def _join(settings: Settings, group: Group) -> int:
    target = joined_path(settings, group)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    part, documents = f"{target}.part", 0
    key = str(settings.preprocess.get("jsonKey") or "text")
    with open(part, "wb") as out:
        for entry in group.entries:
            documents += _add(text_path(settings, entry), out, key)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, target)
    set_made(target, group.inputs, documents=documents)
    return documents


def _add(path: str, out: Any, key: str) -> int:
    documents, first, last = 0, b"", b""
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.isspace():
                    continue
                documents += 1
                first = first or line
                last = line
                out.write(line if line.endswith(b"\n") else line + b"\n")
    except FileNotFoundError:
        raise Problem(f"{path}: is not there; the step extract makes it") from None
    if not documents:
        raise Problem(f"{path}: has no document")
    for each in (first, last):
        _is_document(path, each, key)
    return documents


def _is_document(path: str, line: bytes, key: str) -> None:
    try:
        text = json.loads(line)[key]
    except (ValueError, TypeError, KeyError):
        text = None
    if not isinstance(text, str):
        shown = line[:80].decode("utf-8", errors="replace").strip()
        raise Settled(f'{path}: is no JSON with a text under "{key}": {shown}')
