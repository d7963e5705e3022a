# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was made, and of what: a note beside each file, written when the file is whole.

A file counts as made when its note names the very inputs that are wanted now and the file has the
size of the note. All else is made again, so a killed pod leaves nothing that passes for done.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Sequence

Inputs = Sequence[Sequence[Any]]
"""Name and size of each."""


def note_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.made.json")


def write_json(path: str, content: Any) -> None:
    """Aside and renamed: others see the old one or the new one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Pods share the folder, and in each of them the numbers of processes begin anew.
    aside = f"{path}.{socket.gethostname()}.{os.getpid()}.new"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(content, file, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def read_json(path: str) -> Any:
    """None where it is not there, or is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def set_made(path: str, inputs: Inputs, **more: Any) -> None:
    content = {"inputs": _plain(inputs), "bytes": os.path.getsize(path), **more}
    write_json(note_of(path), content)


def made(path: str, inputs: Inputs) -> dict[str, Any] | None:
    """The note, if the file is whole and made of these; else None."""
    note = read_json(note_of(path))
    if not isinstance(note, dict) or note.get("inputs") != _plain(inputs):
        return None
    try:
        return note if os.path.getsize(path) == note.get("bytes") else None
    except OSError:
        return None


def forget(path: str) -> None:
    """The file and its note; what is not there is no matter."""
    for each in (note_of(path), path):
        try:
            os.unlink(each)
        except OSError:
            continue


def _plain(inputs: Inputs) -> list[list[Any]]:
    return [list(each) for each in inputs]
