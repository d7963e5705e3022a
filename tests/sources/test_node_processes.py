# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes of the trainer: stopped, dead, resting, and what is none of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.model.observation import Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.sources.wrapper_files import NodeProcesses
from mwatch_trainer import contract
from support.builders.volume import WALL, ManualClock, process, write_probe, write_processes

LAUNCHER = process(10)
PROCESS, CPU = SignSource.PROCESS, SignSource.CPU_TIME


class Bench:
    """A volume whose sampler and reader run by one clock."""

    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.clock = ManualClock()
        self.source = NodeProcesses(str(volume), "pod-0", self.clock)

    def sample(self, *processes: dict[str, Any], seconds: float = 1.0) -> list[Sign]:
        """What a new sample of these processes says."""
        self.clock.now += seconds
        write_processes(self.volume, self.clock.now, *processes)
        reading = self.source.read()
        assert isinstance(reading, Ok)
        assert {each.stream for each in reading.value} <= {"pod-0"}
        assert {each.at for each in reading.value} <= {WALL + self.clock.now}
        return [each.what for each in reading.value if isinstance(each.what, Sign)]

    def states(self, *processes: dict[str, Any], **more: float) -> dict[int | None, SignState]:
        signs = self.sample(*processes, **more)
        return {sign.rank: sign.state for sign in signs if sign.source is PROCESS}

    def cpu(self, *processes: dict[str, Any], **more: float) -> dict[int | None, SignState]:
        signs = self.sample(*processes, **more)
        return {sign.rank: sign.state for sign in signs if sign.source is CPU}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_living_rank_is_no_sign(bench: Bench) -> None:
    assert bench.states(LAUNCHER, process(11, 0), process(12, 1, state="D")) == {}


def test_a_stopped_rank_is_reported_at_each_sample_until_it_goes_on(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0), process(12, 1))
    stopped = (LAUNCHER, process(11, 0), process(12, 1, state="T"))
    assert bench.states(*stopped) == {1: SignState.STOPPED}
    assert bench.states(*stopped) == {1: SignState.STOPPED}
    assert bench.states(LAUNCHER, process(11, 0), process(12, 1)) == {1: SignState.UNKNOWN}
    assert bench.states(LAUNCHER, process(11, 0), process(12, 1)) == {}


def test_a_debugger_that_stops_a_rank_is_distinguished_from_a_signal(bench: Bench) -> None:
    assert bench.states(LAUNCHER, process(11, 0, state="t")) == {0: SignState.TRACED}
    assert bench.states(LAUNCHER, process(11, 0)) == {0: SignState.UNKNOWN}


def test_a_command_whose_processes_are_all_stopped_is_suspended_as_a_whole(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0), process(12, 1))
    halfway = (LAUNCHER, process(11, 0, state="T"), process(12, 1))
    assert bench.states(*halfway) == {0: SignState.STOPPED}
    all_stopped = (process(10, state="T"), process(11, 0, state="T"), process(12, 1, state="T"))
    assert bench.states(*all_stopped) == {None: SignState.SUSPENDED, 0: SignState.UNKNOWN}
    assert bench.states(*all_stopped) == {None: SignState.SUSPENDED}
    assert bench.states(LAUNCHER, process(11, 0), process(12, 1)) == {None: SignState.UNKNOWN}


def test_a_stopped_worker_is_reported_where_no_rank_is_known(bench: Bench) -> None:
    shell, other = process(10, cpu_seconds=0.1), process(12, cpu_seconds=60.0)
    running = process(11, cpu_seconds=90.0)
    assert bench.states(shell, running, other) == {}
    stopped = process(11, cpu_seconds=90.0, state="T")
    assert bench.states(shell, stopped, other) == {None: SignState.STOPPED}
    assert bench.states(shell, running, other) == {None: SignState.UNKNOWN}
    assert bench.states(shell, running, other) == {}


def test_a_stopped_helper_does_not_speak_for_a_command_without_ranks(bench: Bench) -> None:
    monitor = process(12, cpu_seconds=0.2, state="T")
    assert bench.states(process(11, cpu_seconds=90.0), monitor) == {}


@pytest.mark.parametrize(("used", "state"), [(0.0, SignState.FLAT), (3.0, SignState.MOVING)])
def test_a_command_without_ranks_rests_or_works(
    bench: Bench, used: float, state: SignState
) -> None:
    shell = process(10, cpu_seconds=0.1)
    bench.sample(shell, process(11, cpu_seconds=90.0))
    now = bench.cpu(shell, process(11, cpu_seconds=90.0 + used), seconds=6.0)
    assert now == {None: state}


@pytest.mark.parametrize("left", [(), (process(12, 1, state="Z"),)], ids=["gone", "zombie"])
def test_a_rank_that_is_gone_is_dead_and_reported_once(
    bench: Bench, left: tuple[dict[str, Any], ...]
) -> None:
    bench.sample(LAUNCHER, process(11, 0), process(12, 1))
    assert bench.states(LAUNCHER, process(11, 0), *left) == {1: SignState.DEAD}
    assert bench.states(LAUNCHER, process(11, 0), *left) == {}


def test_a_rank_that_is_started_again_takes_its_death_back(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0), process(12, 1))
    bench.sample(LAUNCHER, process(11, 0))
    again = bench.states(LAUNCHER, process(11, 0), process(22, 1))
    assert again == {1: SignState.MOVING}
    assert bench.source.ranks == {11: 0, 22: 1}


def test_the_end_of_the_whole_command_is_no_death_of_a_rank(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0), process(12, 1))
    assert bench.sample() == []
    assert bench.sample(process(10, state="Z")) == []


def test_nobody_has_died_when_another_command_begins(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0), process(12, 1))
    bench.sample()
    assert bench.sample(process(30)) == []
    assert bench.source.ranks == {}


def test_cpu_time_needs_five_seconds(bench: Bench) -> None:
    assert bench.cpu(LAUNCHER, process(11, 0, cpu_seconds=50.0)) == {}
    assert bench.cpu(LAUNCHER, process(11, 0, cpu_seconds=50.0), seconds=4.0) == {}
    assert bench.cpu(LAUNCHER, process(11, 0, cpu_seconds=50.0)) == {0: SignState.FLAT}


def test_a_rank_that_rests_is_flat_and_one_that_works_moves(bench: Bench) -> None:
    bench.sample(process(11, 0, cpu_seconds=50.0), process(12, 1, cpu_seconds=60.0))
    later = (process(11, 0, cpu_seconds=50.05), process(12, 1, cpu_seconds=65.0))
    assert bench.cpu(*later, seconds=5.0) == {0: SignState.FLAT, 1: SignState.MOVING}


def test_just_above_two_hundredths_of_a_core_moves(bench: Bench) -> None:
    bench.sample(process(11, 0, cpu_seconds=50.0), process(12, 1, cpu_seconds=50.0))
    later = (process(11, 0, cpu_seconds=50.19), process(12, 1, cpu_seconds=50.21))
    assert bench.cpu(*later, seconds=10.0) == {0: SignState.FLAT, 1: SignState.MOVING}


def test_a_rank_moves_while_a_process_below_it_does(bench: Bench) -> None:
    """It waits for the writer of its checkpoint, say."""
    shell = process(20, ppid=11, cpu_seconds=0.0)
    bench.sample(process(11, 0), process(12, 1), shell, process(21, ppid=20, cpu_seconds=1.0))
    busy = process(21, ppid=20, cpu_seconds=4.0)
    found = bench.cpu(process(11, 0), process(12, 1), shell, busy, seconds=5.0)
    assert found == {0: SignState.MOVING, 1: SignState.FLAT}


def test_a_process_below_that_is_new_counts_whole(bench: Bench) -> None:
    bench.sample(process(11, 0))
    found = bench.cpu(process(11, 0), process(21, ppid=11, cpu_seconds=3.0), seconds=5.0)
    assert found == {0: SignState.MOVING}


def test_a_reused_pid_is_another_process(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0, cpu_seconds=500.0))
    found = bench.cpu(LAUNCHER, process(11, 0, cpu_seconds=1.0, started=9999), seconds=5.0)
    assert found == {}


def test_a_worker_that_inherited_the_rank_is_not_the_rank(bench: Bench) -> None:
    worker = process(21, 1, ppid=12, is_rank=False, state="T")
    assert bench.states(LAUNCHER, process(11, 0), process(12, 1), worker) == {}
    both = bench.states(LAUNCHER, process(12, 1), process(21, 1, state="T", started=5000))
    assert both == {0: SignState.DEAD}


def test_the_probe_knows_better_than_the_environment_who_is_a_rank(bench: Bench) -> None:
    """A PyTorchJob's launcher has RANK=0, and so its first worker is taken for a child of it."""
    launcher = process(10, 0, ppid=1)
    worker = process(100, 0, ppid=10, is_rank=False, started=5)
    write_probe(bench.volume, 0)
    bench.sample(launcher, worker)
    assert bench.source.ranks == {100: 0}
    assert bench.states(launcher, worker | {"state": "T"}) == {0: SignState.STOPPED}
    assert bench.states(launcher) == {0: SignState.DEAD}


def test_a_record_of_an_older_process_names_nobody(bench: Bench) -> None:
    write_probe(bench.volume, 0)
    bench.sample(LAUNCHER, process(100, 0, started=6))
    assert bench.source.ranks == {100: 0}
    assert bench.states(LAUNCHER) == {0: SignState.DEAD}


def test_processes_that_are_each_others_parents_end_the_search(bench: Bench) -> None:
    loop = (process(20, ppid=21), process(21, ppid=20))
    assert bench.cpu(process(11, 0), *loop) == {}


def test_the_same_sample_is_not_reported_twice(bench: Bench) -> None:
    bench.sample(LAUNCHER, process(11, 0, state="T"))
    assert bench.source.read() == Ok(())


def test_no_file_is_absent_and_an_old_one_is_a_failure(bench: Bench) -> None:
    assert isinstance(bench.source.read(), Absent)
    bench.sample(LAUNCHER, process(11, 0))
    bench.clock.now += 60.0
    assert bench.source.read() == Failed("processes.json has not been written for 60 s")


def test_a_file_from_before_a_reboot_is_a_failure(bench: Bench) -> None:
    write_processes(bench.volume, 9999.0, LAUNCHER)
    assert isinstance(bench.source.read(), Failed)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"at": 1}', '{"at": "x", "monotonic": 1}'])
def test_a_broken_file_is_a_failure(bench: Bench, text: str) -> None:
    bench.sample(LAUNCHER)
    (bench.volume / contract.NODE_FOLDER / contract.NODE_PROCESSES).write_text(text)
    assert isinstance(bench.source.read(), Failed)


def test_odd_entries_are_left_out(bench: Bench) -> None:
    odd: Any = [7, None, {"pid": "x"}, {"pid": True}, {"pid": 12, "rank": "1", "cpu_seconds": "?"}]
    assert bench.sample(LAUNCHER, *odd, process(11, 0, state="T")) != []


def test_memory_is_bounded(bench: Bench) -> None:
    for _ in range(100):
        bench.sample(LAUNCHER, process(11, 0), seconds=0.01)
    assert len(bench.source._moments) <= 64
