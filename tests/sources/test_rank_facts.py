# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What each rank uses, and what its main thread spends its time on."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.model.observation import Beat
from mwatch.sources.probe import GAP_SECONDS, RankSeconds
from mwatch.sources.wrapper_files import NodeProcesses
from support.builders.volume import ManualClock, process, write_processes


def beat(phase: str, rank: int = 0) -> Beat:
    return Beat(rank, 2, 1, phase, "a", 1, None)


def test_time_is_booked_to_what_the_thread_is_seen_doing() -> None:
    seconds = RankSeconds()
    for at, phase in ((0.0, "data"), (1.0, "compute"), (2.0, "compute"), (3.5, "collective")):
        seconds.add([(beat(phase), at)])
    assert seconds.of(0) == {"compute": 2.0, "collective": 1.5}
    assert seconds.of(1) == {}


def test_time_that_nobody_saw_is_booked_to_nothing() -> None:
    seconds = RankSeconds()
    for at in (0.0, 1.0, 2.0 + GAP_SECONDS, 3.0 + GAP_SECONDS, 2.5 + GAP_SECONDS):
        seconds.add([(beat("compute"), at)])
    assert seconds.of(0) == {"compute": 2.0}


@pytest.mark.parametrize("phase", ["", "a phase of next year"])
def test_names_of_phases_are_bounded(phase: str) -> None:
    seconds = RankSeconds()
    seconds.add([(beat(phase), 0.0), (beat(phase), 1.0)])
    assert seconds.of(0) == {"unknown": 1.0}


class Bench:
    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.clock = ManualClock()
        self.source = NodeProcesses(str(volume), "p", self.clock)

    def sample(self, *found: dict[str, object]) -> None:
        self.clock.now += 1
        write_processes(self.volume, self.clock.now, *found)
        self.source.read()


def test_a_rank_uses_what_its_processes_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loader = process(20, ppid=11, is_rank=False, rank=0, cpu_seconds=3.0, rss_bytes=1 << 20)
    bench.sample(process(10), process(11, rank=0, cpu_seconds=5.0), loader, process(12, rank=1))
    use = bench.source.use[0]
    assert (use.cpu_seconds, use.resident_bytes, use.threads) == (8.0, (1 << 30) + (1 << 20), 30)
    assert bench.source.use[1].cpu_seconds == 0.0


def test_cpu_time_of_a_process_that_has_ended_stays_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loader = process(20, ppid=11, is_rank=False, rank=0, cpu_seconds=3.0)
    bench.sample(process(11, rank=0, cpu_seconds=5.0), loader)
    bench.sample(process(11, rank=0, cpu_seconds=6.0))
    assert bench.source.use[0].cpu_seconds == 9.0
    again = process(20, ppid=11, is_rank=False, rank=0, cpu_seconds=1.0, started=9999)
    bench.sample(process(11, rank=0, cpu_seconds=6.0), again)
    assert bench.source.use[0].cpu_seconds == 10.0, "the same pid, another process"


def test_what_an_older_wrapper_does_not_show_is_unknown(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.sample(process(11, rank=0, cpu_seconds=None, rss_bytes=None, threads=None))
    assert bench.source.use[0] == (None, None, None)
