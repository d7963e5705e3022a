# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch checkpoints`: the checkpoints of a folder or of a live job, complete or why not.

Exit codes: 0 there is one to resume from, 1 there are some but none is complete and good, 2 bad
usage, no such job, or an unreadable folder, 3 no known checkpoint found. It reads no tensors: a
complete checkpoint has all its bytes, whether or not they are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mwatch.cli.cluster import Context, Kubeconfig, Namespace, is_job, seen
from mwatch.cli.output import write

if TYPE_CHECKING:
    from mwatch.diagnose.checkpoints import CheckpointReport, JobCheckpoints
    from mwatch.model.timeline import CheckpointStanding

_HEAD = ("ITERATION", "STATE", "STANDING", "SIZE", "AGE", "FORMAT", "TRACKER", "REASON")
_JOB_HEAD = ("ITERATION", "STATE", "SIZE", "AGE", "TRACKER", "REASON")
Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR|JOB", help="Read this save folder (--save, save_folder) or this live job."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def checkpoints(
    folder: Folder,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """List checkpoints, and which of them a run can resume from.

    Megatron-LM (torch_dist and legacy) and Composer checkpoints are read; nothing is changed.
    STATE is complete, incomplete or corrupt with the reason, or unverified if it could not be
    checked. TRACKER marks the one that the trainer itself would load.

    STANDING comes from .mwatch/timeline.json beside the checkpoints: good; suspect, written after
    the numbers went bad; abandoned, because a rollback went further back. "resume" marks the newest
    good one. Without that file every complete checkpoint is good; if the file is unreadable, the
    standing is unknown.

    An argument that is a path here is a folder. Any other argument, and every one with -n,
    --context or --kubeconfig, is a live job; its sidecars report the folder as they see it.

    Exit codes: 0 one can be resumed from, 1 none can, 2 unreadable folder or no such job,
    3 none found.

    Example: mwatch checkpoints /data/ckpt
    """
    import json
    import time

    if is_job(folder, namespace, kubeconfig, context):
        _of_job(folder, namespace, kubeconfig, context, as_json)

    from mwatch.diagnose.checkpoints import inspect_folder

    report = inspect_folder(folder, time.time)
    write(json.dumps(report.to_json(), indent=2) if as_json else render(report))
    raise typer.Exit(report.exit_code)


def _of_job(
    job: str, namespace: str | None, kubeconfig: str | None, context: str | None, as_json: bool
) -> NoReturn:
    import json
    import time

    from mwatch.diagnose.checkpoints import inspect_job

    is_forced = (namespace, kubeconfig, context) != (None, None, None)
    found = seen(
        lambda: inspect_job(job, namespace, kubeconfig, context, time.time()),
        "" if is_forced else job,
    )
    write(json.dumps(found.to_json(), indent=2) if as_json else render_job(found))
    raise typer.Exit(found.exit_code)


def render_job(found: JobCheckpoints) -> str:
    """What a sidecar reports: format and standing are not part of it."""
    if found.stored is None:
        return f"no checkpoint data for {found.job}: {found.why}"
    rows = [
        (
            str(each.iteration),
            each.state,
            "?" if each.size_bytes is None else size(each.size_bytes),
            age(found.age_seconds(each)),
            "*" if str(each.iteration) == found.tracker else "",
            _plain(each.reason or ""),
        )
        for each in found.checkpoints
    ]
    lines = _table([_JOB_HEAD, *rows]) if rows else []
    newest = found.newest_complete
    count = sum(each.state == "complete" for each in found.checkpoints)
    end = "" if newest is None else f", the newest is {newest.iteration}"
    where = f"{_plain(found.stored.folder)}, as {found.pod} sees it"
    return "\n".join([*lines, f"{where}: {count} of {len(rows)} checkpoints complete{end}"])


def render(report: CheckpointReport) -> str:
    """The table, notes, and the answer in the last line."""
    rows = [_HEAD, *_rows(report)] if report.listing.checkpoints else []
    lines = _table(rows)
    notes = [f"note: {_plain(note)}" for note in report.notes]
    return "\n".join([*lines, *notes, _answer(report)])


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _rows(report: CheckpointReport) -> list[tuple[str, ...]]:
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


def _standing(standing: CheckpointStanding | None, *, is_resume: bool) -> str:
    if standing is None:
        return "-"
    return f"{standing.value}, resume" if is_resume else standing.value


def _answer(report: CheckpointReport) -> str:
    found = report.listing.checkpoints
    if not found:
        return f"no checkpoint found in {_plain(report.folder)}"
    newest, resume = report.newest_complete, report.resume_from
    if newest is None:
        return f"none of {len(found)} checkpoints is complete"
    count = sum(each.state is newest.state for each in found)
    counted = f"{count} of {len(found)} checkpoints complete"
    if report.timeline.is_broken:
        return f"{counted}, the newest is {newest.name}; its standing is unknown"
    if resume is None:
        return f"{counted}, none of them good"
    return f"{counted}, resume from {resume.name}"


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
