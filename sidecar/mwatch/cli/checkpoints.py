# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch checkpoints`: the checkpoints of a folder, complete or why not, good or not.

Exit codes: 0 there is one to resume from, 1 there are some and none is complete and good, 2 bad
usage or a folder that cannot be read, 3 nothing there that it knows. It reads no tensors: a
complete checkpoint has all its bytes, which need not be the right ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.output import write

if TYPE_CHECKING:
    from mwatch.app.checkpoints import Report
    from mwatch.model.timeline import Standing

_HEAD = ("ITERATION", "STATE", "STANDING", "SIZE", "AGE", "FORMAT", "TRACKER", "REASON")


def checkpoints(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="What --save or save_folder names.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the checkpoints of a folder: complete or why not, good or not.

    Reads Megatron-LM (torch_dist and legacy) and Composer checkpoints, and changes nothing.
    TRACKER marks the one that the trainer itself would load. Unverified means that it could not
    be checked.

    STANDING is what .mwatch/timeline.json says, where mwatch keeps it: good; suspect, for
    numbers had gone bad before it was written; abandoned, for a rollback went behind it. "resume"
    marks the newest good one. Without that file no rollback is known, and what is complete is
    good; with a broken one the standing is unknown.

    Exit code: 0 one can be resumed from, 1 none can, 2 not a readable folder, 3 none found.

    Example: mwatch checkpoints /data/ckpt
    """
    import time

    from mwatch.app.checkpoints import look

    report = look(folder, time.time)
    if as_json:
        import json

        write(json.dumps(report.to_json(), indent=2))
    else:
        write(render(report))
    raise typer.Exit(report.exit_code)


def render(report: Report) -> str:
    """The table, what else there is to know, and the answer in the last line."""
    rows = [_HEAD, *_rows(report)] if report.listing.checkpoints else []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    notes = [f"note: {_plain(note)}" for note in report.notes]
    return "\n".join([*lines, *notes, _answer(report)])


def _rows(report: Report) -> list[tuple[str, ...]]:
    resume = report.resume_from
    return [
        (
            str(each.iteration) if each.name.startswith("iter_") else each.name,
            each.state.value,
            _standing(report.standing(each), is_resume=each is resume),
            ("> " if each.is_cut else "") + size(each.bytes),
            age(report.age_seconds(each)),
            each.format.value,
            "*" if each.tracked else "",
            _plain(each.reason or ""),
        )
        for each in report.listing.checkpoints
    ]


def _standing(standing: Standing | None, *, is_resume: bool) -> str:
    if standing is None:
        return "-"
    return f"{standing.value}, resume" if is_resume else standing.value


def _answer(report: Report) -> str:
    found = report.listing.checkpoints
    if not found:
        return f"no checkpoint found in {_plain(report.folder)}"
    newest, resume = report.newest_complete, report.resume_from
    if newest is None:
        return f"none of {len(found)} checkpoints is complete"
    count = sum(each.state is newest.state for each in found)
    said = f"{count} of {len(found)} checkpoints complete"
    if report.timeline.is_broken:
        return f"{said}, the newest is {newest.name}; whether it is good is not known"
    if resume is None:
        return f"{said}, none of them good"
    return f"{said}, resume from {resume.name}"


def size(count: int) -> str:
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            amount = count / 10**power
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"
    return f"{count} B"


def age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _plain(text: str) -> str:
    """A name in a folder may hold anything; a terminal must not obey it."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
