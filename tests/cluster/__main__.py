# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m cluster`: all tests of this folder, or those that the arguments for pytest choose.

Those that need a node mostly wait for it, so there are three parts that run side by side, each
with a cluster of its own; on a cluster that was given, one after the other. The programs are built
here: several processes would do so at the same time, and pytest would keep the progress to
itself. A part begins as soon as its own programs are there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from cluster import given, programs
from cluster.missing import missing
from cluster.programs import Program
from release.image import ImageError
from support.debian_tools import ToolMissing

_NOTHING_COLLECTED = 5
_INTERRUPTED = 130
_NAMES = {
    programs.WITHOUT_NODE: "without a node",
    programs.WITH_NODE: "with a node that trains nothing",
}
"""Of the parts whose output comes at the end; the progress of the longest is seen."""


def main(words: Sequence[str]) -> int:
    if why := missing():
        print(f"mwatch: {why}", file=sys.stderr)
        return 1
    if given.is_given():
        return _tested(words).wait()
    needs = _needs(words)
    for line in programs.expected(needs):
        print(f"mwatch: {line}", file=sys.stderr, flush=True)
    return _side_by_side(words, needs)


def _needs(words: Sequence[str]) -> dict[str, list[Program]]:
    """Of each part of the chosen tests; all of them where all is built already."""
    if all(each.is_built for each in programs.all_programs()):
        return {part: [*programs.all_programs()] for part in programs.PARTS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "needs.json"
        with tempfile.TemporaryFile() as unread:
            _tested([*words, "--collect-only"], unread, {programs.NEEDS_FILE: str(path)}).wait()
        return programs.read_needs(path)


def _side_by_side(words: Sequence[str], needs: Mapping[str, Sequence[Program]]) -> int:
    parts: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: _leave(parts))
    with ExitStack() as files:
        kept = {part: files.enter_context(tempfile.TemporaryFile()) for part in _NAMES}
        codes = []
        try:
            for part, unbuilt in programs.stages(needs):
                programs.build(unbuilt)
                parts.append(_tested([*words, "-m", part], kept.get(part)))
        except (ToolMissing, ImageError, KeyboardInterrupt) as error:
            _terminate(parts)
            print(f"mwatch: {error or 'interrupted'}", file=sys.stderr)
            codes.append(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
        codes += [_ended(each) for each in parts]
        for part, output in kept.items():
            output.seek(0)
            print(f"mwatch: the tests {_NAMES[part]}:", flush=True)
            sys.stdout.buffer.write(output.read())
    return max((each for each in codes if each != _NOTHING_COLLECTED), default=_NOTHING_COLLECTED)


def _leave(parts: Sequence[subprocess.Popen[bytes]]) -> None:
    _terminate(parts)
    raise KeyboardInterrupt("SIGTERM")  # also for what is being built


def _terminate(parts: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in parts:
        each.terminate()  # they take their clusters down


def _tested(
    words: Sequence[str],
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    has_path = any(Path(each.partition("::")[0]).exists() for each in words)
    where = [] if has_path else [str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", *where, *words],
        env={**os.environ, "MWATCH_CLUSTER_TESTS": "1", **(environment or {})},
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
