# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes flags.tsv: which flags Megatron's own parser has, release by release.

Once, by hand, with a Python that has torch and what Megatron-LM imports:
    git -C Megatron-LM worktree add ../core_v0.16.1 core_v0.16.1   (and so on)
    python make_flags.py core_v0.12.1 core_v0.14.0 core_v0.16.1 core_v0.19.0 > flags.tsv
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ASK = """
import argparse, json, sys, typing
import typing_extensions
typing.override = typing_extensions.override  # newer than some Pythons
sys.path.insert(0, ".")
from megatron.training.arguments import add_megatron_arguments
parser = argparse.ArgumentParser(allow_abbrev=False)
parser = add_megatron_arguments(parser) or parser
found = {}
for action in parser._actions:
    choices = [getattr(each, "name", str(each)) for each in action.choices or ()]
    words = "0" if action.nargs == 0 else str(action.nargs or 1)
    kind = action.type.__name__ if action.type in (int, float) else "str"
    for flag in action.option_strings:
        found[flag] = [words, kind, ",".join(choices)]
print("\\n" + json.dumps(found))
"""


def flags_of(folder: Path) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ASK],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return {flag: each for flag, each in found.items() if flag.startswith("--")}


def main(folders: list[str]) -> None:
    rows: dict[tuple[str, ...], list[str]] = {}
    for folder in folders:
        for flag, row in flags_of(Path(folder)).items():
            rows.setdefault((flag, *row), []).append(Path(folder).name)
    print("# flag\twords that follow\ttype\tchoices\treleases")
    for each, releases in sorted(rows.items()):
        print("\t".join([*each, ",".join(releases)]))


if __name__ == "__main__":
    main(sys.argv[1:])
