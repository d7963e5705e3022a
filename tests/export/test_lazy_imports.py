# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The packages of OTLP and TensorBoard: imported only where they are used, and not needed else.

Each in a process of its own, which is told that a package is not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

OTLP = """
otlp = Otlp('http://127.0.0.1:1', lambda: [busy_snapshot()], pace=SendSchedule(period_seconds=0.01))
otlp.start()
end = time.monotonic() + 50
while otlp.problem is None and time.monotonic() < end:
    time.sleep(0.01)
otlp.close()
print(otlp.problem)
"""
NOTES = """
notes = TensorboardNotes(Path(sys.argv[1]))
notes.update(busy_snapshot())
notes.close()
notes.update(busy_snapshot())
print(notes.problem)
"""
NEITHER = """
Otlp('http://127.0.0.1:1', lambda: []).close()
TensorboardNotes(Path(sys.argv[1])).close()
Exporter(lambda: [busy_snapshot()]).scrape()
dear = {'opentelemetry', 'requests', 'tensorboard', 'google', 'numpy', 'grpc'}
print(sorted(dear & set(sys.modules)))
"""
IMPORTS = """
from mwatch.export.otlp.exporter import Otlp, SendSchedule
from mwatch.export.metrics.prometheus import Exporter
from mwatch.export.tensorboard.notes import TensorboardNotes
from support.builders.snapshot import busy_snapshot
"""


def printed(folder: Path, script: str, without: str = "") -> str:
    head = f"import sys, time\nfrom pathlib import Path\nsys.modules[{without!r}] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", head + IMPORTS + script, folder],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stderr == ""
    assert list(folder.iterdir()) == []
    return done.stdout


def test_nothing_dear_is_imported_where_neither_is_used(tmp_path: Path) -> None:
    assert printed(tmp_path, NEITHER) == "[]\n"


def test_without_opentelemetry_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    (line,) = printed(tmp_path, OTLP, without="opentelemetry").splitlines()
    assert line.endswith("; pip install opentelemetry-exporter-otlp-proto-http")


def test_without_tensorboard_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    (line,) = printed(tmp_path, NOTES, without="tensorboard").splitlines()
    assert line.endswith("; pip install tensorboard")
