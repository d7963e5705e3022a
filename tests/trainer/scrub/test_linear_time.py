# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No line keeps the supervising process busy, neither by the scrubber's rules nor by the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mwatch_trainer.scrub.own_patterns import compiled
from mwatch_trainer.scrub.rules import RULES
from mwatch_trainer.scrub.scrubber import Scrubber
from mwatch_trainer.scrub.values import NAME_NEEDLES
from support.runs.wrapper_runs import environ, python, running
from support.waiting import until

NEEDLES = sorted({*(needle for rule in RULES for needle in rule.needles), *NAME_NEEDLES})
ENDS = [b"", b"=", b'="', b"aA1", b"://", b" --"]
SMALL, FACTOR = 1 << 12, 8


def seconds(piece: bytes, size: int) -> float:
    data = piece * (size // len(piece))
    before = time.thread_time()
    Scrubber().scrub(data)
    return time.thread_time() - before


@pytest.mark.parametrize("end", ENDS)
def test_every_rule_takes_linear_time(end: bytes) -> None:
    """All needles at once, each repeated: quadratic time would take the factor once more."""
    took = [sum(seconds(each + end, size) for each in NEEDLES) for size in (SMALL, SMALL * FACTOR)]
    assert took[1] < took[0] * FACTOR * 2.5 + 0.05


@pytest.mark.parametrize("piece", [b"_token=", b"key=", b"pwd", b"eyJa."])
def test_a_line_of_256_kib_takes_a_moment(piece: bytes) -> None:
    assert seconds(piece, 1 << 18) < 1.0  # 140 s, when it was quadratic


SLOW = [
    "(x+x+)+y", "(a*)*b", ".*a.*b", r"\w+\d+z", r"(\w+\s?)*$", r"(a+)\1", "x*x*y",
    r"(?i)a+A+z", "[a-z]{1,60}[a-z]{1,60}[a-z]{1,60}!",
]  # fmt: skip
FAST = [
    "corp-[0-9]+", r"id=(?P<secret>[a-z]+)", r"key\s*=\s*(\S+)", r"[A-Z]{3}-[0-9]{4}-[a-z]+",
    r"(?:ab)+", r"(?i)internal-\w+", r"https://corp\.example/\S+", "(a|b)c*",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_that_could_take_for_ever_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="could take for ever"):
        compiled(pattern)


@pytest.mark.parametrize("pattern", FAST)
def test_a_usual_pattern_is_taken(pattern: str) -> None:
    assert compiled(pattern).pattern == pattern.encode()


def test_the_wrapper_refuses_it_with_a_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mwatch_trainer", "--dir", str(tmp_path), "--", "true"],
        env={**os.environ, "MWATCH_SCRUB": "(x+x+)+y"}, capture_output=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"MWATCH_SCRUB: '(x+x+)+y' could take for ever" in done.stderr


def test_a_signal_reaches_the_trainer_while_long_lines_are_scrubbed(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "def end(*_): open(sys.argv[1], 'w').write(str(time.time())); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "piece = ('_token=' * 40000)[:252000]\n"
        "while True: print(piece, flush=True)\n"
    )
    ended = tmp_path / "ended"
    given = environ(MWATCH_SCRUB=r"x\w+-y")
    words = python(script, str(ended))
    with running(tmp_path / "v", *words, given=given, stdout=subprocess.DEVNULL) as process:
        log = tmp_path / "v" / "trainer.log"
        until(lambda: log.exists() and log.stat().st_size > 0)
        sent = time.time()
        process.send_signal(signal.SIGTERM)
        until(lambda: ended.exists() and ended.read_text())
        assert float(ended.read_text()) - sent < 30.0
