# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch runbook` and `mwatch export`: show or export the files installed with mwatch.

Exit codes: 0 done, 2 no such runbook, a file that would be overwritten, or a folder that cannot be
written.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path, PurePosixPath
from typing import Annotated

from mwatch.cli.shared.options import argument, flag
from mwatch.cli.shared.terminal import table, write
from mwatch.errors import InputError
from mwatch.shipped import Kind, contents, files

_NEXT = {
    Kind.ALERTS: "kubectl apply -n NAMESPACE -f {folder}/prometheusrule.yaml",
    Kind.CHARTS: "helm install mwatch {folder}/mwatch -n NAMESPACE",
}
_WIDTH = 100
_SHOWN = 3
"""Names in the message about files that are in the way."""


def runbook(
    name: Annotated[
        str | None,
        argument("NAME", "Print this one: of a cause (process-crash) or an alert (MwatchStalled)."),
    ] = None,
) -> None:
    """Print a runbook: what a cause or an alert means, and what to do about it.

    Without NAME, all runbooks are listed: those of causes, then those of alerts. The text is
    Markdown; a link in it, such as host-memory.md, is a NAME too. The runbook README explains the
    placeholders.

    Example: mwatch runbook process-crash

    Example: mwatch runbook MwatchStalled | less
    """
    pages = {path.stem: file for path, file in _files(Kind.RUNBOOKS).items()}
    if name is None:
        rows = [(each, _subject(file)) for each, file in pages.items()]
        rows.sort(key=lambda row: (row[0].startswith("Mwatch"), row[0]))
        write(
            "\n".join(
                line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..." for line in table(rows)
            )
        )
        return
    by_lower = {each.lower(): each for each in pages}
    asked = PurePosixPath(name.partition("#")[0]).name.removesuffix(".md").lower()
    if asked not in by_lower:
        from difflib import get_close_matches

        near = [by_lower[each] for each in get_close_matches(asked, by_lower, n=4, cutoff=0.5)]
        hint = f"; similar: {', '.join(near)}" if near else ""
        raise InputError(f"no runbook {name[:60]!r}{hint}; 'mwatch runbook' lists all")
    write(pages[by_lower[asked]].read_text("utf-8").rstrip("\n"))


def export(
    kind: Annotated[Kind, argument("KIND", "Export alerts, charts, dashboards, rbac or runbooks.")],
    folder: Annotated[Path, argument("DIR", "Write into this folder; it is created.")],
    force: Annotated[bool, flag("--force", "Write over files that differ.")] = False,
) -> None:
    """Export alerts, charts, dashboards, RBAC or runbooks as files.

    A file in DIR that differs from the one to be written is kept, and nothing is written at all;
    --force replaces such files. Files of other names in DIR are left alone.

    Example: mwatch export alerts alerts/

    Example: mwatch export dashboards /etc/grafana/dashboards --force

    Example: mwatch export charts charts/
    """
    _files(kind)
    try:
        wanted = {folder / name: data for name, data in contents(kind).items()}
        missing = [path for path in wanted if not os.path.lexists(path)]
        changed = [path for path in wanted if path not in missing and not _is(path, wanted[path])]
        if changed and not force:
            raise InputError(_in_the_way(changed))
        for path in missing + changed:
            _write(path, wanted[path])
    except OSError as error:
        place = error.filename or folder
        raise InputError(f"cannot write {place}: {error.strerror}; choose another DIR") from error
    count = f"{len(wanted) - len(missing) - len(changed)} unchanged, {len(changed)} replaced"
    write(f"{kind} in {folder}: {len(missing)} files new, {count}")
    written = [path.relative_to(folder) for path in missing + changed]
    for entry in sorted({f"{path.parts[0]}{'/' * (len(path.parts) > 1)}" for path in written}):
        write(f"  {entry}")
    if step := _NEXT.get(kind):
        write(f"next: {step.format(folder=shlex.quote(str(folder)))}")


def _files(kind: Kind) -> dict[PurePosixPath, Path]:
    found = files(kind)
    if not found:
        raise InputError(f"this mwatch was installed without its {kind}: install the wheel again")
    return found


def _subject(page: Path) -> str:
    """The title; the page of an alert has its name as title and is described by a sentence."""
    title, _, rest = page.read_text("utf-8").removeprefix("# ").partition("\n")
    meaning = " ".join(rest.partition("\n## Meaning\n")[2].split())
    return title if title != page.stem else meaning.partition(". ")[0].rstrip(".")


def _is(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def _write(path: Path, data: bytes) -> None:
    from mwatch.report.files import write_target

    path.parent.mkdir(parents=True, exist_ok=True)
    write_target(path, data, fix="choose another DIR", is_clean=True)


def _in_the_way(paths: list[Path]) -> str:
    names = ", ".join(map(str, paths[:_SHOWN]))
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    verb = "differs" if len(paths) == 1 else "differ"
    return (
        f"{names}{more} {verb} from what mwatch would write, so nothing was written; "
        "choose another DIR, or add --force"
    )
