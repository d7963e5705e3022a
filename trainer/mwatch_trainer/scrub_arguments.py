# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The words of a command line, without its secrets."""

from __future__ import annotations

from typing import Sequence

from mwatch_trainer.scrub import Scrubber


def scrubbed(argv: Sequence[str], scrubber: Scrubber) -> list[str]:
    """A value is looked at together with the flag before it: `--password`, `hunter2`."""
    clean: list[str] = []
    for before, word in zip(("", *argv), argv):
        text = scrubber.text(f"{before} {word}") if before.startswith("-") else ""
        is_value = text.startswith(before + " ") and text != f"{before} {word}"
        chosen = text[len(before) + 1 :] if is_value else scrubber.text(word)
        clean.append(chosen.encode("utf-8", "replace").decode("utf-8"))
    return clean
