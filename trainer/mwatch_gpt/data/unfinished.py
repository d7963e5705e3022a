# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The state file beside an output: what of the input is safely in it, and of which input.

Written after the data it speaks of, and in one step, so that after a kill, a full disk or a lost
machine it tells the truth. `done` stays as the record of what the output was made of.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from mwatch_gpt.data.corpus import LineStart
from mwatch_gpt.errors import BadInput

VERSION = 1
WRITING = "writing"
FINISHING = "finishing"
"""All input is in the parts; they only need their names."""
DONE = "done"


class Sizes(NamedTuple):
    """Bytes of the three parts of one output."""

    tokens: int = 0
    lengths: int = 0
    documents: int = 0


class ConversionState(NamedTuple):
    settings: str
    """Fingerprint of inputs, tokenizer and switches."""
    outputs: int = 1
    stage: str = WRITING
    place: LineStart = LineStart()
    sizes: tuple[Sizes, ...] = ()
    documents: int = 0
    tokens: int = 0
    left_out: int = 0


def path_of(prefix: str) -> Path:
    return Path(f"{prefix}.state.json")


def load(prefix: str) -> ConversionState | None:
    """None where there is none; BadInput where it cannot be understood."""
    path = path_of(prefix)
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if found.pop("version") != VERSION:
            raise ValueError("another version")
        found["place"] = LineStart(*found["place"])
        found["sizes"] = tuple(Sizes(*each) for each in found["sizes"])
        return ConversionState(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: cannot be read ({error}); --overwrite starts over") from None


def store(prefix: str, state: ConversionState) -> None:
    """In one step: a reader sees the old one or the new one."""
    path = path_of(prefix)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump({"version": VERSION, **state._asdict()}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
