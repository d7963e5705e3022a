# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The save folder: judged once, aside, and never for longer than its limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mwatch.model.observation import Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.checkpoint_dir import CheckpointDir
from mwatch_trainer.checkpoint.listing import TRACKER, ListedCheckpoint, verify
from support.builders import checkpoint as build
from support.builders.volume import ManualClock

WAIT = 60.0


class Judge:
    """Notes who was looked through; may be held up, as by a server that is gone."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, folder: str, name: str) -> ListedCheckpoint | None:
        self.may_go.wait(WAIT)
        self.names.append(name)
        return verify(folder, name)

    def since(self) -> list[str]:
        names, self.names = self.names, []
        return sorted(names)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.judge = Judge()
        self.source = CheckpointDir(
            str(folder), "pod-0", limit_seconds=30.0, clock=self.clock, judge=self.judge
        )

    def look(self) -> dict[int, StoredCheckpoint]:
        return stored(self.source.read_now(WAIT))


def stored(reading: Reading[tuple[Observed, ...]]) -> dict[int, StoredCheckpoint]:
    assert isinstance(reading, Ok)
    (seen,) = reading.value
    assert isinstance(seen.what, StoredCheckpoints)
    return {each.iteration: each for each in seen.what.checkpoints}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.judge.may_go.set()


def test_everything_that_is_there_is_reported(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    build.torch_dist(bench.folder, 20)
    (bench.folder / "iter_0000020" / "metadata.json").unlink()
    found = bench.look()
    assert sorted(found) == [10, 20]
    assert found[10].state == "complete"
    assert found[20].state != "complete"
    assert found[20].reason
    assert found[10].size_bytes
    assert found[10].written_at


def test_a_whole_checkpoint_is_looked_through_once(bench: Bench) -> None:
    for number in (10, 20):
        build.torch_dist(bench.folder, number)
    bench.look()
    assert bench.judge.since() == ["iter_0000010", "iter_0000020"]
    build.torch_dist(bench.folder, 30)
    (bench.folder / TRACKER).write_text("30")
    assert sorted(bench.look()) == [10, 20, 30]
    assert bench.judge.since() == ["iter_0000030"]
    bench.clock.now += 100_000.0
    assert sorted(bench.look()) == [10, 20, 30]
    assert bench.judge.since() == []


def test_one_that_is_written_again_is_looked_at_again(bench: Bench) -> None:
    folder = bench.folder / "iter_0000010"
    build.torch_dist(bench.folder, 10)
    bench.look()
    os.utime(folder / "metadata.json", (1.0, 1.0))
    bench.look()
    assert bench.judge.since() == ["iter_0000010"] * 2


def test_a_second_save_of_an_iteration_is_identified_by_the_tracker(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    bench.look()
    (bench.folder / TRACKER).write_text("10")
    bench.look()
    assert bench.judge.since() == ["iter_0000010"]
    (bench.folder / TRACKER).unlink()
    (bench.folder / TRACKER).write_text("10 ")
    bench.look()
    assert bench.judge.since() == ["iter_0000010"]


def test_one_that_is_not_whole_is_looked_at_ever_more_rarely(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    (bench.folder / "iter_0000010" / "metadata.json").unlink()
    looks = 0
    for _ in range(200):
        bench.clock.now += 5.0
        bench.look()
        looks += len(bench.judge.since())
    assert 4 <= looks <= 10


def test_a_tree_that_is_never_whole_is_not_walked_for_ever(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    (bench.folder / "iter_0000010" / "metadata.json").unlink()
    for _ in range(100):
        bench.clock.now += 700.0
        bench.look()
    assert len(bench.judge.since()) <= 9
    bench.clock.now += 100_000.0
    bench.look()
    assert bench.judge.since() == []
    os.utime(bench.folder / "iter_0000010")
    bench.look()
    assert bench.judge.since() == ["iter_0000010"], "it has changed"


def test_sizes_space_and_the_trackers_word_are_reported_with_it(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10, {"__0_0.distcp": 5000})
    (bench.folder / TRACKER).write_text("10")
    assert (bench.source.storage, bench.source.sizes, bench.source.tracker) == (None, {}, None)
    bench.look()
    assert bench.source.sizes[10] > 5000
    assert bench.source.tracker == "10"
    assert bench.source.storage is not None
    assert 0 < (bench.source.storage.free_bytes or 0) <= (bench.source.storage.size_bytes or 0)


def test_composers_files_are_known_by_their_own_times(bench: Bench) -> None:
    for rank in (0, 1):
        build.torch_file(bench.folder / f"ep0-ba30-rank{rank}.pt")
    assert sorted(bench.look()) == [30]
    bench.look()
    assert len(bench.judge.since()) == 1
    os.utime(bench.folder / "ep0-ba30-rank1.pt", (1.0, 1.0))
    bench.look()
    assert len(bench.judge.since()) == 1


def test_one_that_goes_away_is_reported(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    assert sorted(bench.look()) == [10]
    (bench.folder / "iter_0000010").rename(bench.folder / "elsewhere")
    assert bench.look() == {}


def test_a_read_does_not_wait_and_shows_a_look_once(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    assert bench.source.read() == Absent("not read yet")
    assert bench.source._call.wait(WAIT)
    assert sorted(stored(bench.source.read())) == [10]
    assert bench.source.read() == Ok(())
    bench.clock.now += 11.0
    assert bench.source.read() == Ok(())
    assert bench.source._call.wait(WAIT)
    assert sorted(stored(bench.source.read())) == [10]


def test_who_is_about_to_choose_need_not_wait_for_the_next_round(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    bench.look()
    build.torch_dist(bench.folder, 20)
    assert bench.source.read() == Ok(())
    assert not bench.source._call.is_busy, "it is not due"
    bench.source.poll_soon()
    assert bench.source.read() == Ok(())
    assert bench.source._call.wait(WAIT)
    assert sorted(stored(bench.source.read())) == [10, 20]


def test_a_folder_that_hangs_is_a_failure_with_one_look_out(bench: Bench) -> None:
    build.torch_dist(bench.folder, 10)
    bench.look()
    bench.judge.may_go.clear()
    os.utime(bench.folder / "iter_0000010" / "metadata.json", (1.0, 1.0))
    bench.clock.now += 11.0
    assert bench.source.read() == Ok(())
    threads = threading.active_count()
    bench.clock.now += 31.0
    assert bench.source.read() == Failed("no answer for 31 s")
    bench.clock.now += 31.0
    assert bench.source.read() == Failed("no answer for 62 s")
    assert threading.active_count() == threads
    assert isinstance(bench.source.read_now(0.01), Failed)
    bench.judge.may_go.set()
    assert bench.source._call.wait(WAIT)
    assert sorted(stored(bench.source.read())) == [10]


def test_a_folder_that_is_not_there_is_absent_not_empty(bench: Bench) -> None:
    bench.folder.rmdir()
    assert isinstance(bench.source.read_now(WAIT), Absent)
    assert isinstance(bench.source.read(), Absent)


def test_a_file_in_its_place_is_a_failure(bench: Bench) -> None:
    bench.folder.rmdir()
    bench.folder.write_text("")
    assert isinstance(bench.source.read_now(WAIT), Failed)
