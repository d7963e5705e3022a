# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the trainer prints, read at once: through a real pipe."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from mwatch.run.process import OutputBuffer
from support.waiting import until

SECONDS = 60
FLOOD = """
import sys
for _ in range(64):
    sys.stdout.buffer.write(b"x" * 999_999 + b"\\n")
print("END")
"""


def test_all_of_it_comes_in_its_order() -> None:
    reading, writing = os.pipe()
    printed = OutputBuffer(os.fdopen(reading, "rb"))
    os.write(writing, b"one\n")
    os.write(writing, b"\xff\x00two")
    os.close(writing)
    printed._thread.join(SECONDS)  # `rest` itself does not wait for long
    assert printed.rest() == b"one\n\xff\x00two"
    assert printed.take() == b""


def test_a_flood_is_never_held_up_and_loses_its_middle_only() -> None:
    process = subprocess.Popen([sys.executable, "-c", FLOOD], stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = OutputBuffer(process.stdout)
    assert process.wait(SECONDS) == 0, "nobody took it, and the trainer waited"
    printed._thread.join(SECONDS)
    shown = printed.rest()
    gap, _, rest = shown.partition(b"\n")
    assert gap.startswith(b"... ") and gap.endswith(b"they are in the log ...")
    lost = int(gap.split()[1])
    assert lost + len(rest) == 64 * 1_000_000 + 4
    assert len(rest) <= 1 << 20
    assert rest.endswith(b"END\n")


def test_its_thread_and_its_file_end_with_the_output() -> None:
    reading, writing = os.pipe()
    before = {*threading.enumerate()}
    stream = os.fdopen(reading, "rb")
    printed = OutputBuffer(stream)
    os.close(writing)
    until(lambda: {*threading.enumerate()} <= before)
    assert stream.closed
    assert printed.rest() == b""


def test_an_output_that_stays_open_is_not_waited_for_long() -> None:
    reading, writing = os.pipe()
    printed = OutputBuffer(os.fdopen(reading, "rb"))
    os.write(writing, b"last words")
    until(lambda: printed._held == len(b"last words"))
    assert printed.rest() == b"last words"
    os.close(writing)
