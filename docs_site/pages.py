# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of the site, and where a link of one of them leads there.

Most lie in `docs/`. Runbooks, design and changelog lie elsewhere and are copied; the reference is
generated. The pages are written for a reader of the repository too: on the site, a link to a file
that is shown there leads to its page, and any other one to the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from docs_site.reference import GENERATED

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/mwatch-dev/mwatch/blob/main"
RUNBOOKS = "runbooks"
PROJECT = ("DESIGN.md", "CHANGELOG.md", "SCORECARD.md", "alerts/README.md")
"""Besides the runbooks: pages that lie elsewhere, shown under `project/`."""
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#:]+)(?P<rest>#[^)\s]*)?(?=\))")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


@cache
def copied() -> dict[str, str]:
    """Path in the repository of each page that lies outside `docs/`, by its path in the site."""
    names = sorted(path.name for path in (ROOT / RUNBOOKS).glob("*.md"))
    runbooks = {f"{RUNBOOKS}/{name}": f"{RUNBOOKS}/{name}" for name in names}
    return runbooks | {f"project/{name.replace('/README', '')}": name for name in PROJECT}


def texts() -> dict[str, str]:
    """Pages that are not in `docs/`, by their path in the site."""
    made = {path: make() for path, make in GENERATED.items()}
    return made | {path: (ROOT / source).read_text("utf-8") for path, source in copied().items()}


def runbook_menu() -> list[str]:
    """The overview, then alerts, then causes."""
    return sorted(
        (path for path in copied() if path.startswith(f"{RUNBOOKS}/")),
        key=lambda path: ("README" not in path, "Mwatch" not in path, path),
    )


def translate(text: str, here: str, is_shown: Callable[[str], bool]) -> str:
    """Change the links of a page; `here` and `is_shown` speak of paths in the site."""
    source = copied().get(here, f"docs/{here}")
    own = {origin: path for path, origin in copied().items()}

    def lead(found: re.Match[str]) -> str:
        rest = found["rest"] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["target"]))
        inside = target.removeprefix("docs/") if target.startswith("docs/") else own.get(target)
        if inside is not None and is_shown(inside):
            return posixpath.relpath(inside, posixpath.dirname(here) or ".") + rest
        return f"{REPOSITORY}/{target}{rest}"

    parts = _CODE.split(text)
    return "".join(
        part if number % 2 else _LINK.sub(lead, part) for number, part in enumerate(parts)
    )


def broken_links(text: str, here: str, pages: Collection[str]) -> list[str]:
    """Links of a page that lead neither to a page of the site nor to a file of the repository."""
    prose = _CODE.sub("", translate(text, here, lambda path: path in pages or _is_file(path)))
    found = []
    for link in _LINK.finditer(prose):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["target"]))
        if path not in pages and not _is_file(path):
            found.append(link["target"])
    outside = re.findall(rf"\]\({re.escape(REPOSITORY)}/([^)#\s]+)", prose)
    return found + [path for path in outside if not (ROOT / path).exists()]


def _is_file(path: str) -> bool:
    return (ROOT / "docs" / path).is_file()
