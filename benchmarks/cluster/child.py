# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A Python process of this project, for as long as it is needed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.measure import ROOT
from benchmarks.serving import environment


@contextmanager
def child(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    one = subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment(), cwd=ROOT)
    try:
        yield one
    finally:
        one.kill()
        one.wait()
