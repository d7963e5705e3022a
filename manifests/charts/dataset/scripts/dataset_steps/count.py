# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Last step: everything is there, and how much it is. Then what lay between may go."""

from __future__ import annotations

import glob
import os
from typing import Any

from dataset_steps.concatenate import joined_path
from dataset_steps.extract import text_path
from dataset_steps.index_file import count
from dataset_steps.listing import (
    Group,
    Listing,
    document,
    finished,
    own_groups,
    raw_path,
    read_listing,
)
from dataset_steps.made import forget, read_json, write_json
from dataset_steps.problem import Problem
from dataset_steps.say import say
from dataset_steps.settings import Settings


def count_all(settings: Settings) -> None:
    listing = read_listing(settings)
    outputs = [_counted(settings, each) for each in own_groups(settings, listing)]
    content = {"listing": listing.digest, "of": settings.pods, "outputs": outputs}
    write_json(_report(settings, settings.pod), content)
    say(f"count: this pod has {_words(outputs)}")
    if not settings.keep:
        _clean(settings, own_groups(settings, listing))
    everything = _everything(settings, listing)
    if everything is None:
        say("count: other pods are still at work")
        return
    if len(everything) != len(listing.groups):
        raise Problem(f"count: {len(everything)} files, and {len(listing.groups)} are wanted")
    write_json(os.path.join(settings.folder, "dataset.json"), _summary(settings, everything))
    _tell_of_others(settings, {each["name"] for each in everything})
    say(f"count: ALL of {settings.name}: {len(listing.entries)} files read, {_words(everything)}")


def _counted(settings: Settings, group: Group) -> dict[str, Any]:
    note = finished(settings, group)
    if note is None:
        raise Problem(f"{document(settings, group)}: is not whole; the step preprocess makes it")
    found = count(document(settings, group))
    if found.documents != note["documents"]:
        raise Problem(
            f"{document(settings, group)}: has {found.documents} documents and not "
            f"{note['documents']}"
        )
    name = os.path.basename(document(settings, group))
    return {"name": name, "documents": found.documents, "tokens": found.tokens}


def _everything(settings: Settings, listing: Listing) -> list[dict[str, Any]] | None:
    """Of all pods; None while one of them has not reported on this very listing."""
    found: list[dict[str, Any]] = []
    for index in range(settings.pods):
        content = read_json(_report(settings, index))
        if not isinstance(content, dict):
            return None
        if content["listing"] != listing.digest or content["of"] != settings.pods:
            return None
        found += content["outputs"]
    return sorted(found, key=lambda each: str(each["name"]))


def _tell_of_others(settings: Settings, wanted: set[str]) -> None:
    """Of an earlier, larger wish: nobody here knows whether they are still of use."""
    found = glob.glob(os.path.join(glob.escape(settings.folder), "*_text_document.idx"))
    others = sorted({os.path.basename(each)[: -len(".idx")] for each in found} - wanted)
    if others:
        words = f"{len(others)} more lie beside them, such as {others[0]}"
        say(f"count: {words}: delete them, or name in dataset.prefixes what training shall read")


def _report(settings: Settings, index: int) -> str:
    return os.path.join(settings.state, f"report-{index}.json")


def _summary(settings: Settings, outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "source": settings.source,
        "outputs": outputs,
        "documents": sum(each["documents"] for each in outputs),
        "tokens": sum(each["tokens"] for each in outputs),
    }


def _words(outputs: list[dict[str, Any]]) -> str:
    documents = sum(each["documents"] for each in outputs)
    tokens = sum(each["tokens"] for each in outputs)
    return f"{len(outputs)} .bin/.idx, {documents} documents, {tokens} tokens"


def _clean(settings: Settings, groups: list[Group]) -> None:
    """Files that the user put on the claim are the user's."""
    for group in groups:
        forget(joined_path(settings, group))
        for entry in group.entries:
            if "path" in entry:
                continue
            forget(text_path(settings, entry))
            forget(raw_path(settings, entry))
