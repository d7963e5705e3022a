# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m cluster`: all tests of this folder, words for pytest may follow.

Those that need a node mostly wait for it, so there are three parts that run side by side, each
with a cluster of its own; on a cluster that was given, one after the other. The programs are built
before: several processes would do so at the same time, and pytest would keep the progress to
itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from cluster import given
from cluster.binaries import prepare
from cluster.missing import missing
from support.debian_tools import ToolMissing

_NOTHING_COLLECTED = 5
_SHOWN = "trains"
"""The part whose progress is seen: it takes longest."""
_KEPT = {"without a node": "not node", "with a node that trains nothing": "node and not trains"}


def main(words: Sequence[str]) -> int:
    why = missing()
    try:
        if not why and not given.is_given():
            prepare()
    except ToolMissing as error:
        why = str(error)
    if why:
        print(f"mwatch: {why}", file=sys.stderr)
        return 1
    return _tested(words).wait() if given.is_given() else _side_by_side(words)


def _side_by_side(words: Sequence[str]) -> int:
    with ExitStack() as files:
        said = {name: files.enter_context(tempfile.TemporaryFile()) for name in _KEPT}
        parts = [_tested([*words, "-m", _SHOWN])]
        parts += (_tested([*words, "-m", marks], said[name]) for name, marks in _KEPT.items())
        signal.signal(signal.SIGTERM, lambda *_: _leave(parts))
        codes = [_ended(each) for each in parts]
        for name, kept in said.items():
            kept.seek(0)
            print(f"mwatch: the tests {name}:", flush=True)
            sys.stdout.buffer.write(kept.read())
    return max((each for each in codes if each != _NOTHING_COLLECTED), default=_NOTHING_COLLECTED)


def _leave(parts: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in parts:
        each.terminate()  # they take their clusters down


def _tested(words: Sequence[str], output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", str(Path(__file__).parent), *words],
        env={**os.environ, "MWATCH_CLUSTER_TESTS": "1"},
        stdout=output,
        stderr=output,
    )


def _ended(child: subprocess.Popen[bytes]) -> int:
    """Ctrl-C reaches the child as well: it takes its cluster down, and is waited for."""
    while True:
        try:
            return abs(child.wait())
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
