# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One volume, watched: real files, in the order and at the moments that the engine needs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mwatch.engine.engine import Engine
from mwatch.model.event import Iteration
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    Sign,
    SignState,
    Source,
    SourceStatusChange,
    StoredCheckpoints,
)
from mwatch.watch.collector import VolumeCollector
from mwatch_trainer import contract
from mwatch_trainer.probe.record_file import ProbeRecord, pack
from support.builders import checkpoint as checkpoints
from support.builders.events import grammar, megatron_line
from support.builders.job import entries
from support.builders.run import TestClock
from support.builders.volume import WALL, process, write_attempt, write_processes
from support.waiting import until


class Volume:
    """On the machine's own monotonic clock, as the sources read it."""

    def __init__(self, path: Path, save: Path | None = None) -> None:
        self.path = path
        self.clock = TestClock(time.monotonic())
        self.live = VolumeCollector(
            path, "local", grammar(faults=True), entries(), self.clock, save
        )

    def say(self, *iterations: int) -> None:
        text = "".join(f"{megatron_line(each)}\n" for each in iterations)
        with (self.path / contract.LOG).open("a") as file:
            file.write(text)

    def start(self, number: int = 1, **change: Any) -> None:
        usual: dict[str, Any] = {"started_at": self.clock.now(), "save": None}
        write_attempt(self.path, number, **(usual | change))

    def read(self) -> list[Observed]:
        self.clock.monotonic = time.monotonic()
        return self.live.read()


def kinds(seen: list[Observed]) -> list[str]:
    return [type(each.what).__name__ for each in seen]


def stored(seen: Iterable[Observed]) -> list[StoredCheckpoints]:
    return [each.what for each in seen if isinstance(each.what, StoredCheckpoints)]


def ended(at: float) -> dict[str, Any]:
    return {"code": 1, "signal": None, "reason": "x", "returned": 1, "at": at, "asked": False}


def test_a_beginning_comes_before_what_is_printed_and_an_end_after_it(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.say(1, 2)
    volume.start(exit=ended(volume.clock.now()))
    told = kinds(volume.read())
    assert told.index("AttemptStart") < told.index("Iteration")
    assert told[-1] == "ProcessExit"
    assert kinds(volume.read()).count("ProcessExit") == 0, "once"


def test_an_end_is_reported_after_the_last_line_of_a_flood(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    with (tmp_path / contract.LOG).open("wb") as file:
        file.write(b"words of no meaning, and very many of them\n" * 3_000_000)
    volume.say(500)
    volume.start(exit=ended(volume.clock.now()))
    told = volume.read()
    (place,) = [n for n, each in enumerate(told) if isinstance(each.what, Iteration)]
    assert place < kinds(told).index("ProcessExit")


def test_what_a_wrapper_wrote_is_dated_by_our_clock(tmp_path: Path) -> None:
    """Somebody set the clock of the machine forward, and later back."""
    volume = Volume(tmp_path)
    for number, shift in ((1, 0.0), (2, 3600.0), (3, -3600.0)):
        before = volume.clock.now()
        volume.start(number, started_at=volume.clock.now() + shift)
        (start,) = [each for each in volume.read() if isinstance(each.what, AttemptStart)]
        assert before <= start.at <= volume.clock.now()


def test_a_clock_that_is_set_makes_no_hour_of_silence(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.start()
    volume.read()
    ahead = volume.clock.monotonic + 3600
    sample = {"at": WALL + ahead, "processes": [process(11, rank=0, state="T")]}
    write_processes(tmp_path, volume.clock.monotonic)
    contract.write_json(
        str(tmp_path / contract.NODE_FOLDER / contract.NODE_PROCESSES),
        {"monotonic": volume.clock.monotonic, **sample},
    )
    signs = [each for each in volume.read() if isinstance(each.what, Sign)]
    assert signs
    assert all(each.at <= volume.clock.now() for each in signs)


def test_a_stopped_rank_is_identified_by_what_was_seen_of_its_process(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.start()
    stopped = process(11, rank=0, state="T")
    write_processes(tmp_path, volume.clock.monotonic, process(10), stopped)
    states = [each.what.state for each in volume.read() if isinstance(each.what, Sign)]
    assert states == [SignState.STOPPED]


def test_beats_are_those_of_the_attempt_that_runs(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    beat(tmp_path, attempt=1, rank=0)
    beat(tmp_path, attempt=2, rank=1)
    volume.start(2)
    seen = [each.what for each in volume.read() if isinstance(each.what, Beat)]
    assert [each.rank for each in seen] == [1]
    assert seen[0].attempt is None, "torchrun starts anew without the wrapper"


def test_512_ranks_are_read_in_a_moment(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.start()
    for rank in range(512):
        beat(tmp_path, attempt=1, rank=rank)
    began = time.monotonic()
    seen = volume.read()
    assert time.monotonic() - began < 10
    assert kinds(seen).count("Beat") == 512


def test_the_save_folder_is_known_from_the_wrapper(tmp_path: Path) -> None:
    save = tmp_path / "ckpt"
    checkpoints.torch_dist(save, 20, {"__0_0.distcp": 100})
    volume = Volume(tmp_path)
    volume.start(save=str(save))
    volume.read()
    assert volume.live.save == save
    (found,) = until(lambda: stored(volume.read()))
    assert [each.iteration for each in found.checkpoints] == [20]
    checkpoints.torch_dist(save, 40, {"__0_0.distcp": 100})
    (now,) = stored(volume.live.stored_now())
    assert {each.iteration for each in now.checkpoints} == {20, 40}


def test_when_an_attempt_ends_the_save_folder_is_looked_into_at_once(tmp_path: Path) -> None:
    """A crash may come right after a save, and what to resume from is decided within seconds."""
    save = tmp_path / "ckpt"
    checkpoints.torch_dist(save, 20, {"__0_0.distcp": 100})
    volume = Volume(tmp_path)
    volume.start(save=str(save))
    until(lambda: stored(volume.read()))
    checkpoints.torch_dist(save, 40, {"__0_0.distcp": 100})
    volume.start(save=str(save), exit=ended(volume.clock.now()))
    assert "ProcessExit" in kinds(volume.read())
    assert volume.live.folder is not None and volume.live.folder._call.wait(60.0)
    (found,) = stored(volume.read())
    assert {each.iteration for each in found.checkpoints} == {20, 40}


def test_a_view_that_is_lost_is_reported(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    volume.say(1)
    volume.read()
    assert volume.live.sources["log"].is_up
    write_processes(tmp_path, volume.clock.monotonic, process(11, rank=0))
    volume.start()
    volume.read()
    os.unlink(tmp_path / contract.NODE_FOLDER / contract.NODE_PROCESSES)
    changes = [each.what for each in volume.read() if isinstance(each.what, SourceStatusChange)]
    assert [(each.source, each.is_up) for each in changes] == [(Source.PROCESS, False)]


def test_what_one_source_hides_does_not_hide_the_others(tmp_path: Path) -> None:
    """Files of a release that nobody has thought of, and folders where files should be."""
    volume = Volume(tmp_path)
    (tmp_path / contract.NODE_FOLDER).mkdir()
    for name in (contract.NODE_PROCESSES, contract.NODE_GPUS):
        (tmp_path / contract.NODE_FOLDER / name).write_text('{"at": [], "processes": {"a": 1}}')
    (tmp_path / contract.PROBE_FOLDER).write_text("no folder")
    (tmp_path / contract.ATTEMPT).mkdir()
    volume.say(3)
    assert "Iteration" in kinds(volume.read())
    assert volume.live.errors == []


def test_an_empty_volume_says_nothing(tmp_path: Path) -> None:
    volume = Volume(tmp_path)
    assert volume.read() == []
    assert volume.live.rest() == []
    assert not any(each.is_up for each in volume.live.sources.values())
    volume.live.close()


def beat(volume: Path, *, attempt: int, rank: int) -> None:
    folder = volume / contract.PROBE_FOLDER
    folder.mkdir(exist_ok=True)
    record = ProbeRecord(
        attempt, 0, 100 + rank, 5, rank, rank, 512, 7, time.monotonic(), WALL, 40, 12,
        "collective", "ab", "wait",
    )  # fmt: skip
    (folder / f"{contract.PROBE_PREFIX}{rank}").write_bytes(pack(record, 2))


def test_a_sidecar_that_comes_in_a_later_attempt_does_not_count_the_ones_before_it(
    tmp_path: Path,
) -> None:
    """All attempts of one container print into one log."""
    first = Volume(tmp_path)
    first.start(1)
    first.say(*range(1, 60))
    place = (tmp_path / contract.LOG).stat()
    first.start(2, resume_from=50, log={"inode": place.st_ino, "bytes": place.st_size})
    first.say(*range(51, 70))
    engine = Engine("run", entries())
    second = Volume(tmp_path)
    for _ in range(2):
        for observed in second.read():
            engine.observe(observed)
    assert engine.job.attempt.number == 2 and engine.job.attempt.iteration == 69
    assert not [each for each in engine.job.past if each.number >= 2]
