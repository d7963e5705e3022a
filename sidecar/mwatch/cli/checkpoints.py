# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch checkpoints` lists the checkpoints of a folder or job; `mwatch rollback` selects one.

Tensors are not read: a complete checkpoint has all its bytes, but their values are not verified.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.shared.cluster import exit_if_unreachable, is_job
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import AsJson, Context, Kubeconfig, Namespace, argument, flag, option
from mwatch.cli.shared.terminal import table, write

if TYPE_CHECKING:
    from mwatch.diagnose.checkpoints import CheckpointReport, JobCheckpoints
    from mwatch.model.timeline import CheckpointStanding
    from mwatch.operate.rollback import RollbackReport

_HEAD = ("ITERATION", "STATE", "STANDING", "SIZE", "AGE", "FORMAT", "TRACKER", "REASON")
_JOB_HEAD = ("ITERATION", "STATE", "SIZE", "AGE", "TRACKER", "REASON")
Folder = Annotated[
    str, argument("DIR|JOB", "Read this save folder (--save, save_folder) or this live job.")
]


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
    from mwatch.diagnose.checkpoints import inspect_folder, inspect_job

    found: CheckpointReport | JobCheckpoints
    where = (namespace, kubeconfig, context)
    if is_job(folder, *where):
        with exit_if_unreachable("" if any(where) else folder):
            found = inspect_job(folder, *where, time.time())
        kind, text = "job_checkpoints", render_job(found)
    else:
        found = inspect_folder(folder, time.time)
        kind, text = "checkpoints", render(found)
    if as_json:
        write_json(kind, found.to_json())
    else:
        write(text)
    raise typer.Exit(found.exit_code)


SaveFolder = Annotated[str, argument("DIR", "Change this save folder (--save).")]
To = Annotated[
    int | None,
    option(
        "ITERATION", "Resume from this checkpoint; by default the newest good one.", "--to", min=1
    ),
]
Reason = Annotated[str, option("REASON", "Record this reason beside the checkpoints.")]
DryRun = Annotated[bool, flag("--dry-run", "Print what would be done, and do nothing.")]


def rollback(
    folder: SaveFolder,
    to: To = None,
    reason: Reason = "by hand",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Set a stopped run back to a good checkpoint.

    For a run that mwatch only observes: in mode act it does this by itself. Megatron's tracker file
    is set to the newest good checkpoint, or to the one that you choose; its old value is kept in
    .mwatch/tracker-before.json. Newer checkpoints are marked as abandoned and not deleted. Run it
    where the folder is mounted, after the run was stopped and before it starts again.

    Exit codes: 0 done, or nothing to change; 2 no such checkpoint, or a folder that cannot be
    changed.

    Example: mwatch rollback /data/ckpt --to 45000 --reason 'NaN since 45120'
    """
    from mwatch.operate.rollback import roll_back

    done = roll_back(folder, to, reason, time.time(), is_dry_run=dry_run)
    if as_json:
        write_json("rollback", {"command": "rollback", "dry_run": dry_run, **done.to_json()})
    else:
        write(render_rollback(done, is_dry_run=dry_run))


def render_rollback(done: RollbackReport, *, is_dry_run: bool) -> str:
    will = "would resume" if is_dry_run else "resumes"
    lines = [f"the next start {will} from checkpoint {done.iteration}"]
    lines += [f"  {_plain(each)}" for each in done.changes]
    if done.abandoned:
        listed = ", ".join(map(str, done.abandoned[-8:]))
        lines.append(f"  no longer used, and not deleted: {listed}")
    return "\n".join([*lines, *(f"note: {_plain(each)}" for each in done.notes)])


def render_job(found: JobCheckpoints) -> str:
    """The table of a live job; a sidecar reports neither format nor standing."""
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
    lines = table([_JOB_HEAD, *rows]) if rows else []
    newest = found.newest_complete
    count = sum(each.state == "complete" for each in found.checkpoints)
    end = "" if newest is None else f", the newest is {newest.iteration}"
    where = f"{_plain(found.stored.folder)}, as {found.pod} sees it"
    return "\n".join([*lines, f"{where}: {count} of {len(rows)} checkpoints complete{end}"])


def render(report: CheckpointReport) -> str:
    """The table, notes, and a conclusion in the last line."""
    lines = table([_HEAD, *_rows(report)]) if report.listing.checkpoints else []
    notes = [f"note: {_plain(note)}" for note in report.notes]
    return "\n".join([*lines, *notes, _answer(report)])


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
    """Escape control characters in the name of a file."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
