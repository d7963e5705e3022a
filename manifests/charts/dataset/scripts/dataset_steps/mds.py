# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""For LLM-Foundry: its own converter makes MDS shards, one split after the other.

The converter downloads while it converts and cannot go on with a split that was cut off, so each
split is made aside, its shards are measured against its index, and only then it gets its name.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from dataset_steps import tool
from dataset_steps.made import read_json, write_json
from dataset_steps.problem import Problem
from dataset_steps.say import say, size
from dataset_steps.settings import Settings


def convert(settings: Settings) -> None:
    for split in settings.mds["splits"]:
        target = os.path.join(settings.folder, split)
        if _note(settings, split) and os.path.isdir(target):
            shards(target)
            say(f"convert: {split} is there")
            continue
        aside = os.path.join(settings.folder, ".work")
        shutil.rmtree(aside, ignore_errors=True)
        if os.path.isdir(target):
            say(f"convert: {split} is of another wish or was left half; made anew")
            shutil.rmtree(target)
        code = tool.run(command(settings, split, aside))
        if code:
            raise Problem(f"convert: {split}: the converter ended with {code}; its words are above")
        made = os.path.join(aside, split)
        found = shards(made)
        os.rename(made, target)
        write_json(_path(settings, split), {"wish": _wish(settings, split), **found})
        say(f"convert: {split}: {found['samples']} samples, {size(found['bytes'])}")


def count_mds(settings: Settings) -> None:
    found = {each: shards(os.path.join(settings.folder, each)) for each in settings.mds["splits"]}
    summary = {"source": settings.source, "splits": found}
    write_json(os.path.join(settings.folder, "dataset.json"), summary)
    for split, each in found.items():
        words = f"{each['shards']} shards, {each['samples']} samples, {size(each['bytes'])}"
        say(f"count: {split}: {words}")
    samples = sum(each["samples"] for each in found.values())
    say(f"count: ALL of {settings.name}: {samples} samples")


def command(settings: Settings, split: str, out: str) -> list[str]:
    given = settings.mds
    words = [sys.executable, str(given["converter"]), "--dataset", str(given["dataset"])]
    words += ["--data_subset", str(given["subset"]), "--out_root", out, "--splits", split]
    words += ["--concat_tokens", str(given["concatTokens"]), "--tokenizer", str(given["tokenizer"])]
    return [*words, "--eos_text", str(given["eosText"]), "--num_workers", str(given["workers"])]


def shards(folder: str) -> dict[str, int]:
    """What the index promises, measured. Problem where a shard is missing or short."""
    index = read_json(os.path.join(folder, "index.json"))
    if not isinstance(index, dict) or not index.get("shards"):
        raise Problem(f"{folder}: has no index.json with shards in it")
    samples = number = 0
    for shard in index["shards"]:
        file: dict[str, Any] = shard.get("zip_data") or shard["raw_data"]
        path = os.path.join(folder, file["basename"])
        have = os.path.getsize(path) if os.path.exists(path) else -1
        if have != file["bytes"]:
            raise Problem(f"{path}: {have} bytes, its index says {file['bytes']}")
        samples += int(shard["samples"])
        number += have
    return {"shards": len(index["shards"]), "samples": samples, "bytes": number}


def _wish(settings: Settings, split: str) -> dict[str, Any]:
    kept = ("dataset", "subset", "concatTokens", "tokenizer", "eosText")
    return {"split": split, **{key: settings.mds[key] for key in kept}}


def _path(settings: Settings, split: str) -> str:
    return os.path.join(settings.state, f"{split}.json")


def _note(settings: Settings, split: str) -> bool:
    content = read_json(_path(settings, split))
    return isinstance(content, dict) and content.get("wish") == _wish(settings, split)
