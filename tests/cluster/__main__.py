# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m cluster`: all tests of this folder, words for pytest may follow.

Those that need a node mostly wait for it, so the others run beside them, on an API server of
their own; on a cluster that was given, one after the other. The programs are built before: two
processes would do so at the same time, and pytest would keep the progress to itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from cluster import given
from cluster.binaries import prepare
from cluster.missing import missing
from debian_tools import ToolMissing

_NOTHING_COLLECTED = 5


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
    with tempfile.TemporaryFile() as kept:
        parts = [_tested([*words, "-m", "not node"], kept), _tested([*words, "-m", "node"])]
        signal.signal(signal.SIGTERM, lambda *_: _leave(parts))
        codes = [_ended(each) for each in reversed(parts)]
        kept.seek(0)
        print("mwatch: the tests that need no node:", flush=True)
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
