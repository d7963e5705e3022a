# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notes that cannot be written: no folder yet, a full file, a hung file system."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from mwatch.export.tensorboard.notes import Room, TensorboardNotes
from support.builders.notes import ACTED, HANG, at, points, read, texts, wait_for


def test_the_folder_of_the_trainer_is_waited_for_and_never_made(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    notes = TensorboardNotes(folder, retry_seconds=0.01)
    notes.incident(HANG)
    wait_for(lambda: notes.failures)
    assert not folder.exists()
    assert "does not exist yet" in (notes.problem or "")
    folder.mkdir()
    wait_for(lambda: notes.written == 2)
    notes.close(60.0)
    assert notes.problem is None
    assert points(read(folder), "mwatch/incident") == [(42, 1.0)]


def test_a_file_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    notes = TensorboardNotes(tmp_path, retry_seconds=0.01)
    notes.incident(HANG)
    wait_for(lambda: notes.written == 2)
    (own,) = (tmp_path / "mwatch").iterdir()
    own.unlink()
    notes.incident(ACTED)
    wait_for(lambda: notes.written == 3)
    notes.close(60.0)
    assert texts(read(tmp_path), "mwatch/incidents")[0][1].count("restart") == 1


def test_a_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    notes = TensorboardNotes(tmp_path, max_queued=10_000, room=Room(max_bytes=1000))
    for number in range(200):
        notes.update(at(number + 1, goodput=0.5))
    notes.close(60.0)
    (own,) = (tmp_path / "mwatch").iterdir()
    assert own.stat().st_size <= 1000
    assert notes.dropped > 100
    assert "reached its maximal size" in (notes.problem or "")
    assert points(read(tmp_path), "mwatch/goodput")


def test_a_file_system_that_hangs_holds_nobody(tmp_path: Path) -> None:
    hung = threading.Event()

    class FakeHungFolder(type(tmp_path)):  # type: ignore[misc]
        """As a network file system that has lost its server."""

        def is_dir(self) -> bool:
            return bool(hung.wait(120))

    notes = TensorboardNotes(FakeHungFolder(tmp_path), max_queued=4)
    looks = [at(number, goodput=0.5) for number in range(1, 300)]
    began = time.monotonic()
    for each in looks:
        notes.update(each)
    notes.close(0.1)
    assert time.monotonic() - began < 60
    assert notes.dropped >= 290
    hung.set()
