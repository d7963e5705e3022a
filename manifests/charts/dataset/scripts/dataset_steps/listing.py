# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which files the dataset is made of, written down once: all pods and all retries agree on it.

Files are joined in groups of equal number, and one group becomes one pair of .bin and .idx. A pod
takes every n-th group through all steps, so no pod waits for another one.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from typing import Any, Dict, NamedTuple

from dataset_steps.hub import hub_files, natural
from dataset_steps.made import made, read_json, write_json
from dataset_steps.problem import Settled
from dataset_steps.settings import Settings

Entry = Dict[str, Any]


class Group(NamedTuple):
    name: str
    entries: list[Entry]

    @property
    def inputs(self) -> list[list[Any]]:
        return [[each["name"], each.get("size"), each.get("changed")] for each in self.entries]


class Listing(NamedTuple):
    entries: list[Entry]
    groups: list[Group]
    digest: str


def make_listing(settings: Settings) -> Listing:
    """Read where it is there for the same wish, else made. Files on the claim may have changed
    since then, so they are looked at each time."""
    known = _stored(settings)
    if known is None or any("path" in spec for spec in settings.files):
        entries = [one for spec in settings.files for one in _of_spec(settings, spec)]
        entries = entries[: settings.sample] if settings.sample else entries
        if len({each["name"] for each in entries}) != len(entries):
            raise Settled("two files have the same name; give them different ones")
        if settings.sample and len(entries) < settings.sample:
            raise Settled(f"there are {len(entries)} files, and {settings.sample} are wanted")
        if entries != known:
            write_json(_path(settings), {"wish": _wish(settings), "entries": entries})
    return read_listing(settings)


def read_listing(settings: Settings) -> Listing:
    entries = _stored(settings)
    if entries is None:
        raise Settled(f"{_path(settings)} is not there: the step download makes it")
    size = settings.per_output
    groups = [
        Group(f"{settings.name}-{start // size:05d}", entries[start : start + size])
        for start in range(0, len(entries), size)
    ]
    text = json.dumps(entries, sort_keys=True)
    return Listing(entries, groups, hashlib.sha256(text.encode()).hexdigest()[:16])


def own_groups(settings: Settings, listing: Listing) -> list[Group]:
    return listing.groups[settings.pod :: settings.pods]


def open_groups(settings: Settings, listing: Listing) -> list[Group]:
    """Those of this pod that are not finished."""
    return [each for each in own_groups(settings, listing) if finished(settings, each) is None]


def finished(settings: Settings, group: Group) -> dict[str, Any] | None:
    """The note of its .bin, where both files are whole and tokens are made as is wished now."""
    notes = [made(document(settings, group) + each, group.inputs) for each in (".bin", ".idx")]
    is_so = all(note and note.get("of") == settings.tokenizing for note in notes)
    return notes[0] if is_so else None


def document(settings: Settings, group: Group) -> str:
    """The prefix that training is given."""
    return os.path.join(settings.folder, f"{group.name}_text_document")


def raw_path(settings: Settings, entry: Entry) -> str:
    return str(entry.get("path") or os.path.join(settings.folder, "raw", entry["name"]))


def _path(settings: Settings) -> str:
    return os.path.join(settings.state, "files.json")


def _wish(settings: Settings) -> dict[str, Any]:
    return {"files": settings.files, "sample": settings.sample, "revision": settings.revision}


def _stored(settings: Settings) -> list[Entry] | None:
    content = read_json(_path(settings))
    if not isinstance(content, dict) or content.get("wish") != _wish(settings):
        return None
    return list(content["entries"])


def _of_spec(settings: Settings, spec: dict[str, Any]) -> list[Entry]:
    if "hub" in spec:
        return hub_files(settings, spec, settings.sample)
    if "url" in spec:
        name = spec.get("name") or str(spec["url"]).partition("?")[0].rpartition("/")[2]
        return [{"name": name, "url": spec["url"], "size": None, "sha256": spec.get("sha256")}]
    paths = sorted(glob.glob(str(spec["path"])), key=natural)
    if not paths:
        raise Settled(f"{spec['path']}: no such file on the claim")
    return [_of_path(each) for each in paths]


def _of_path(path: str) -> Entry:
    found = os.stat(path)
    name, changed = os.path.basename(path), int(found.st_mtime)
    return {"name": name, "path": path, "size": found.st_size, "changed": changed}
