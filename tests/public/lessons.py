# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `mwatch.classifier` learns from: the public cases, and short texts of what programs print.

The sets in `HELD_OUT` are left out, so that tests can measure what it makes of logs that it has not
seen. The short texts (`known/`) were written from knowledge of the programs, not from a thread.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from typing import NamedTuple

from public.judge import CASES, Case, read_cases, right_actions

KNOWN = CASES.parent / "known"
HELD_OUT = ("caltha", "drosera", "erica", "felicia")
"""Files of cases that are never learnt from."""


class Example(NamedTuple):
    """Causes and actions: each is right, the best one first."""

    causes: tuple[str, ...]
    actions: tuple[str, ...]
    text: str


def learnt_from() -> list[Example]:
    return [*map(lesson, cases_learnt_from()), *known_texts()]


def cases_learnt_from() -> list[Case]:
    return [each for each in read_cases() if each.set_name not in HELD_OUT]


def lesson(case: Case) -> Example:
    return Example(case.causes, case.right_actions, case.text)


def digest(examples: Sequence[Example]) -> str:
    """Changes with each example, so that a test notices weights that are out of date."""
    texts = sorted("\0".join((*each.causes, "", *each.actions, "", each.text)) for each in examples)
    return hashlib.sha256("\0\0".join(texts).encode()).hexdigest()


def known_texts() -> list[Example]:
    found = []
    for file in sorted(KNOWN.glob("*.toml")):
        for each in tomllib.loads(file.read_text("utf-8"))["case"]:
            causes, actions = tuple(each["causes"]), tuple(each["actions"])
            found.append(Example(causes, right_actions(causes, actions), each["text"]))
    return found
