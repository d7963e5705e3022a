# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step 1: the files of the listing, whole, and the tokenizer's vocabulary and merges."""

from __future__ import annotations

import os
import shutil
import socket
from typing import Any

from dataset_steps.listing import Entry, make_listing, open_groups, raw_path
from dataset_steps.made import made, set_made
from dataset_steps.pool import each_of
from dataset_steps.problem import Settled
from dataset_steps.say import say, size
from dataset_steps.settings import Settings
from dataset_steps.transfer import fetch


def download(settings: Settings) -> None:
    fetch_tokenizer(settings)
    listing = make_listing(settings)
    wanted = [each for group in open_groups(settings, listing) for each in group.entries]
    missing = [each for each in wanted if not _is_there(settings, each)]
    _room(settings, missing)
    say(f"download: {len(missing)} of {len(wanted)} files to get ({len(listing.entries)} in all)")

    def get(entry: Entry) -> int:
        path = raw_path(settings, entry)
        number = fetch(entry, path, settings.retry, _token(settings, entry))
        set_made(path, _inputs(entry))
        return number

    got = each_of("download", missing, settings.workers, get)
    say(f"download: {len(got)} files, {size(sum(got))}")


def _is_there(settings: Settings, entry: Entry) -> bool:
    if "path" in entry:
        if not os.path.isfile(entry["path"]):
            raise Settled(f"{entry['path']}: is gone from the claim")
        return True
    return made(raw_path(settings, entry), _inputs(entry)) is not None


def _inputs(entry: Entry) -> list[list[Any]]:
    return [[entry["name"], entry.get("size"), entry["url"]]]


def _token(settings: Settings, entry: dict[str, Any]) -> str:
    """The hub's alone gets the hub's token."""
    is_hub = settings.endpoint and str(entry["url"]).startswith(settings.endpoint + "/")
    return settings.token if is_hub else ""


def _room(settings: Settings, missing: list[Entry]) -> None:
    """Told now and not after hours. A file system that knows no total has no say."""
    os.makedirs(settings.folder, exist_ok=True)
    disk = shutil.disk_usage(settings.folder)
    needed = sum(int(each.get("size") or 0) for each in missing)
    if disk.total and needed > disk.free:
        words = f"the files need {size(needed)} and the claim has {size(disk.free)} free"
        raise Settled(f"{words}; make it larger, or take a smaller sample")


def fetch_tokenizer(settings: Settings) -> None:
    """Beside the datasets, since all of them share it."""
    for name in ("vocab.json", "merges.txt"):
        url = settings.tokenizer.get(name)
        if not url:
            continue
        path = os.path.join(settings.root, "tokenizer", name)
        entry: Entry = {"name": name, "url": url, "size": None}
        if made(path, _inputs(entry)) is None:
            # Pods that get it at the same time, of other datasets too, must not share a half of it.
            aside = f"{path}.{socket.gethostname()}.{os.getpid()}"
            fetch(entry, aside, settings.retry, _token(settings, entry))
            os.replace(aside, path)
            set_made(path, _inputs(entry))
            say(f"tokenizer: {path}, {size(os.path.getsize(path))}")
