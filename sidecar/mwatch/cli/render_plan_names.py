# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan --list`: three tables of names."""

from __future__ import annotations

from collections.abc import Sequence


def render() -> str:
    from mwatch.app.plan_names import instances, presets, tiers

    return "\n\n".join(_table(rows) for rows in (presets(), instances(), tiers()))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
