# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a dataset on the hub, at one commit: names, sizes and hashes."""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Any, Iterator

from dataset_steps.problem import Settled
from dataset_steps.settings import Settings
from dataset_steps.transfer import read_page

_NEXT = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


def hub_files(settings: Settings, spec: dict[str, Any], wanted: int) -> list[dict[str, Any]]:
    """Folder after folder, until there are as many as are wanted (0: all)."""
    repo = str(spec["hub"])
    commit = _commit(settings, repo)
    found: list[dict[str, Any]] = []
    for folder in spec.get("folders") or [""]:
        inside = [
            _entry(settings, repo, commit, each)
            for each in _tree(settings, repo, commit, str(folder))
            if each.get("type") == "file" and str(each["path"]).endswith(str(spec["ending"]))
        ]
        if not inside:
            raise Settled(f"{repo}: no *{spec['ending']} in {folder or 'it'} at {commit}")
        found += sorted(inside, key=lambda each: natural(each["name"]))
        if wanted and len(found) >= wanted:
            break
    return found


def natural(name: str) -> list[Any]:
    """So that file 2 comes before file 10."""
    return [int(each) if each.isdigit() else each for each in re.split(r"(\d+)", name)]


def _commit(settings: Settings, repo: str) -> str:
    """A branch may move between two pods; a commit does not."""
    revision = urllib.parse.quote(settings.revision, safe="")
    url = f"{settings.endpoint}/api/datasets/{repo}/revision/{revision}"
    body, _ = read_page(url, settings.retry, settings.token)
    commit = _json(body, url).get("sha")
    if not isinstance(commit, str) or not commit:
        raise Settled(f"{url}: the answer names no commit")
    return commit


def _tree(settings: Settings, repo: str, commit: str, folder: str) -> Iterator[dict[str, Any]]:
    where = "/".join(["tree", commit, *([urllib.parse.quote(folder)] if folder else [])])
    url: str | None = f"{settings.endpoint}/api/datasets/{repo}/{where}?recursive=true"
    while url is not None:
        body, headers = read_page(url, settings.retry, settings.token)
        yield from _json(body, url)
        link = _NEXT.search(headers.get("Link") or "")
        url = urllib.parse.urljoin(url, link.group(1)) if link else None


def _json(body: bytes, url: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Settled(f"{url.partition('?')[0]}: the answer is no JSON") from None


def _entry(settings: Settings, repo: str, commit: str, each: dict[str, Any]) -> dict[str, Any]:
    path, large = str(each["path"]), each.get("lfs") or {}
    return {
        "name": path.replace("/", "-"),
        "url": f"{settings.endpoint}/datasets/{repo}/resolve/{commit}/{urllib.parse.quote(path)}",
        "size": large.get("size", each.get("size")),
        "sha256": large.get("oid"),
    }
