# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Runs before the trainer: counts the data files that are really there, and shares them out.

Writes `data.txt` (weights and prefixes, for --data-args-path) or `data.json` (one list for each
split, for --per-split-data-args-path). Whatever is missing ends it with one sentence, before a
GPU works. It reads the first bytes of each index only: that a file is whole inside is not known.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Mapping, NoReturn

MAGIC = b"MMIDIDX\x00\x00"
TRACKER = "latest_checkpointed_iteration.txt"


def main(environ: Mapping[str, str]) -> None:
    out = Path(environ["OUT"])
    if "BASE_CHECKPOINT" in environ:
        look_at_base(Path(environ["BASE_CHECKPOINT"]), Path(environ["CHECKPOINTS"]))
    if "MUST_EXIST" in environ:
        look_for_checkpoint(Path(environ["MUST_EXIST"]))
    if "DATA_FOLDER" not in environ:
        return
    for name in environ.get("TOKENIZER_FILES", "").split():
        if not os.path.exists(name):
            refuse(f"the tokenizer's {name} is not there; the dataset chart writes it")
    named = environ.get("DATA_PREFIXES", "").split()
    if named:
        for each in named:
            size_of(each)
        print(f"data: {len(named)} named files are there", flush=True)
    elif environ.get("DATA_ARGUMENTS_FILE"):
        look_at_arguments(Path(environ["DATA_ARGUMENTS_FILE"]))
    else:
        share_out(Path(environ["DATA_FOLDER"]), environ, out)


def share_out(folder: Path, environ: Mapping[str, str], out: Path) -> None:
    sizes = {each: size_of(each) for each in prefixes_in(folder)}
    if not sizes:
        refuse(f"{folder} holds no pair of .bin and .idx; run the dataset chart first")
    if environ["SPLIT_BY"] == "fraction":
        write(out / "data.txt", " ".join(weighed(list(sizes), sizes)))
        print(f"data: {len(sizes)} files, each split by fractions", flush=True)
        return
    valid, test = int(environ["VALIDATION_FILES"]), int(environ["TEST_FILES"])
    if len(sizes) <= valid + test:
        refuse(
            f"{folder} holds {len(sizes)} files, and {valid} for validation with {test} for test "
            "leave none to train on; lower dataset.validationFiles and dataset.testFiles"
        )
    # From the end, without an overlap: what is held back is never trained on.
    names = list(sizes)
    train = names[: len(names) - valid - test]
    held = {"train": train, "valid": names[len(train) : len(train) + valid]}
    held["test"] = names[len(train) + valid :]
    shares: dict[str, list[str] | None] = {
        split: weighed(each, sizes) or None for split, each in held.items()
    }
    write(out / "data.json", json.dumps(shares))
    print(f"data: {len(train)} files to train on, {valid} to validate, {test} to test", flush=True)


def prefixes_in(folder: Path) -> list[str]:
    """Sorted, so that all pods see one order. What is hidden is work that somebody has begun."""
    if not folder.is_dir():
        refuse(f"{folder} is not there; run the dataset chart first, or set dataset.path")
    found = [each for each in folder.rglob("*.bin") if not is_hidden(each.relative_to(folder))]
    return sorted(str(each)[: -len(".bin")] for each in found)


def is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def size_of(prefix: str) -> int:
    """Of the tokens, in bytes; the pair must be there and look like one."""
    index = Path(f"{prefix}.idx")
    try:
        with index.open("rb") as file:
            magic = file.read(len(MAGIC))
        size = os.path.getsize(f"{prefix}.bin")
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}; each .bin needs its .idx")
    if magic != MAGIC:
        refuse(f"{index} is no index of Megatron's; it may be half written: make it again")
    if size == 0:
        refuse(f"{prefix}.bin is empty; make it again")
    return size


def weighed(names: list[str], sizes: Mapping[str, int]) -> list[str]:
    """By size: a token of a small file counts as much as one of a large file."""
    return [word for each in names for word in (str(sizes[each]), each)]


def look_at_arguments(file: Path) -> None:
    try:
        words = file.read_text("utf-8").split()
    except OSError as error:
        refuse(f"{file}: {error.strerror}; set dataset.argumentsFile to a file of the data volume")
    prefixes = [each for each in words if not is_number(each)]
    if not prefixes:
        refuse(f"{file} names no data")
    for each in prefixes:
        size_of(each)
    print(f"data: {len(prefixes)} files of {file} are there", flush=True)


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def look_at_base(base: Path, save: Path) -> None:
    """Needed by a first attempt alone: later ones begin with the run's own checkpoints."""
    if not (base / TRACKER).is_file() and not (save / TRACKER).is_file():
        refuse(f"{base} holds no converted base model; install with continued.stage=convert first")


def look_for_checkpoint(save: Path) -> None:
    """Megatron itself would end with 0, and the job would have succeeded without a step."""
    if not (save / TRACKER).is_file():
        refuse(f"{save} holds no checkpoint; train first, or set storage.checkpoints.path")


def write(file: Path, text: str) -> None:
    file.write_text(text + "\n", "utf-8")


def refuse(sentence: str) -> NoReturn:
    print(f"data: {sentence}", file=sys.stderr, flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main(os.environ)
