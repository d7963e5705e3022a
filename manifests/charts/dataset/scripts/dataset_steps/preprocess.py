# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step 4: tokens. Runs the tool that writes .bin and .idx, and looks at what it wrote.

The tool works under another name; only what holds every document gets the name that training
looks for. Megatron's own tool starts a file over, ours goes on by itself.
"""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path

from dataset_steps import tool
from dataset_steps.concatenate import joined_note, joined_path
from dataset_steps.index_file import Counted, count
from dataset_steps.listing import Group, document, open_groups, read_listing
from dataset_steps.made import set_made
from dataset_steps.problem import Problem, Settled
from dataset_steps.say import say
from dataset_steps.settings import Settings

_BAD_INPUT = 2
"""Of our own tool; a full disk or a killed worker is another code. Megatron's has but one."""


def preprocess(settings: Settings) -> None:
    groups = open_groups(settings, read_listing(settings))
    say(f"preprocess: {len(groups)} files to tokenize")
    for number, group in enumerate(groups, 1):
        counted = _make(settings, group)
        words = f"{counted.documents} documents, {counted.tokens} tokens"
        say(f"preprocess: {number} of {len(groups)}: {document(settings, group)}: {words}")


def command(settings: Settings, group: Group, prefix: str) -> list[str]:
    given = settings.preprocess
    program = {
        "mwatch": ["-m", "mwatch_gpt.data"],
        "megatron": [os.path.join(str(given.get("megatronPath")), "tools", "preprocess_data.py")],
    }.get(str(given.get("engine")))
    if program is None:
        raise Settled(f"preprocess.engine {given.get('engine')!r} is neither mwatch nor megatron")
    words = [sys.executable, *program, "--input", joined_path(settings, group)]
    words += ["--output-prefix", prefix, "--json-keys", str(given.get("jsonKey") or "text")]
    words += ["--workers", str(given.get("workers") or 1)]
    words += ["--tokenizer-type", str(given.get("tokenizerType"))]
    if given.get("tokenizerModel"):
        words += ["--tokenizer-model", str(given["tokenizerModel"])]
    if settings.tokenizer:
        folder = os.path.join(settings.root, "tokenizer")
        words += ["--vocab-file", os.path.join(folder, "vocab.json")]
        words += ["--merge-file", os.path.join(folder, "merges.txt")]
    if given.get("engine") == "mwatch":
        # Goes on with the same work; another's is started over, since nobody else uses the name.
        words.append("--overwrite")
    elif settings.tokenizer and _knows_legacy_tokenizer(str(given.get("megatronPath"))):
        # Else core_v0.15 and v0.16 ask the hub, though the files lie here.
        words.append("--legacy-tokenizer")
    return words + (["--append-eod"] if given.get("appendEod", True) else [])


def _knows_legacy_tokenizer(megatron: str) -> bool:
    """Megatron's tool takes the flag from the trainer's arguments, in the releases that have it."""
    wanted = {"tools/preprocess_data.py": b"_add_tokenizer_args"}
    wanted["megatron/training/arguments.py"] = b"--legacy-tokenizer"
    try:
        return all(word in Path(megatron, path).read_bytes() for path, word in wanted.items())
    except OSError:
        return False


def _make(settings: Settings, group: Group) -> Counted:
    wanted = int(joined_note(settings, group)["documents"])
    work = os.path.join(settings.folder, ".work", group.name)
    os.makedirs(os.path.dirname(work), exist_ok=True)
    if settings.preprocess.get("engine") == "megatron":
        _clear(work)
    code = tool.run(command(settings, group, work))
    if code:
        words = f"{group.name}: the tool for tokens ended with {code}; its words are above"
        is_settled = settings.preprocess.get("engine") == "mwatch" and code == _BAD_INPUT
        raise (Settled if is_settled else Problem)(words)
    written = f"{work}_{settings.preprocess.get('jsonKey') or 'text'}_document"
    counted = count(written)
    if counted.documents != wanted:
        raise Problem(f"{group.name}: {counted.documents} of {wanted} documents were written")
    for ending in (".bin", ".idx"):
        os.replace(written + ending, document(settings, group) + ending)
    for ending in (".bin", ".idx"):
        path = document(settings, group) + ending
        of = settings.tokenizing
        set_made(path, group.inputs, documents=counted.documents, tokens=counted.tokens, of=of)
    _clear(work)
    return counted


def _clear(work: str) -> None:
    for each in glob.glob(glob.escape(work) + "*"):
        os.unlink(each)
