# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that send signals work wherever the suite is started from: `support.signals`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import signal, subprocess, sys
for name in sys.argv[2:]:
    signal.signal(signal.Signals[name], signal.SIG_IGN)
if sys.argv[1] == "as the tests":
    from support.signals import give_children_default_signals
    give_children_default_signals()
for name in sys.argv[2:]:
    signal.raise_signal(signal.Signals[name])  # still ignored by the suite itself
print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout)
"""
IGNORED = ("SIGINT", "SIGQUIT", "SIGHUP")


@pytest.mark.parametrize(("how", "ignored"), [("plainly", set(IGNORED)), ("as the tests", set())])
def test_a_child_of_a_suite_in_the_background_reacts_to_signals(
    how: str, ignored: set[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUITE, how, *IGNORED],
        env={"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = re.search(r"^SigIgn:\s*(\w+)", done.stdout, re.MULTILINE)
    assert found is not None
    mask = int(found[1], 16)
    assert {name for name in IGNORED if mask >> signal.Signals[name] - 1 & 1} == ignored
