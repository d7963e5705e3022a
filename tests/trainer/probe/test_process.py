# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe inside real processes: who writes, who does not, and what it does to them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support.builders.probe import (
    WORKER,
    beat_after,
    finished,
    record_of,
    running,
    standing,
    state_of,
    wait_for,
)

WAIT = "import sys\nsys.stdin.readline()\n"
TRAIN = """
import sys
def train():
    sys.stdin.readline()
exec(compile('def outer(inner): inner()', '/x/megatron/training/training.py', 'exec'))
outer.__code__ = outer.__code__.replace(co_name='train')
outer(train)
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume with a space"
    folder.mkdir()
    return folder


def test_a_rank_writes_what_it_is_doing(volume: Path) -> None:
    told = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "2"}
    with running(TRAIN, volume, told) as child:
        first = standing(volume, rank=5, phase="compute")  # it is past its imports
        second = beat_after(volume, first.ticks, rank=5)
        assert finished(child) == (0, "", "")
    assert (first.attempt, first.restart_count, first.pid) == (3, 2, child.pid)
    assert (first.rank, first.local_rank, first.world_size) == (5, 1, 8)
    assert (first.phase, first.iteration) == ("compute", -1)
    assert first.where.endswith("train") or "program" in first.where
    assert second.monotonic > first.monotonic
    assert second.stack == first.stack != ""


def test_its_last_word_is_that_it_stops(volume: Path) -> None:
    with running(TRAIN, volume) as child:
        beat = beat_after(volume)
        assert finished(child)[0] == 0
    last = record_of(volume)
    assert last is not None
    assert last.phase == "stopping"
    assert last.ticks > beat.ticks


def test_the_record_is_readable_whatever_the_umask(volume: Path) -> None:
    usual = os.umask(0o077)
    try:
        with running(WAIT, volume) as child:
            beat_after(volume)
            assert finished(child)[0] == 0
    finally:
        os.umask(usual)
    for path in (volume / "probe" / "rank-0", volume / "dumps" / "rank-0.signal.txt"):
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.parent.stat().st_mode & 0o777 == 0o755


def test_it_can_be_switched_off(volume: Path) -> None:
    code = "import sys, threading\nprint(threading.active_count(), 'mwatch_trainer' in sys.modules)"
    with running(code, volume, {**WORKER, "MWATCH_PROBE": "0"}) as child:
        assert finished(child) == (0, "1 False\n", "")
    assert list(volume.iterdir()) == []


def test_a_program_that_is_no_rank_is_left_alone(volume: Path) -> None:
    code = "import sys; print([n for n in ('threading', 'json', 'typing') if n in sys.modules])"
    with running(code, volume, {}) as child:
        assert finished(child) == (0, "[]\n", "")
    assert list(volume.iterdir()) == []


FORKS = """
import os, sys, threading
pid = os.fork()
if not pid:
    print(threading.active_count(), flush=True)
    sys.stdin.readline()
    sys.exit(0)
os.waitpid(pid, 0)
"""


def test_a_forked_child_has_no_probe_and_its_end_is_not_the_ranks(volume: Path) -> None:
    with running(FORKS, volume, None, "-W", "error") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        beat = beat_after(volume, 2)
        assert (beat.pid, beat.phase) == (child.pid, "")
        assert finished(child)[::2] == (0, "")


SPAWNS = """
import subprocess, sys, multiprocessing
def work(queue):
    import threading
    queue.put((threading.active_count(), 'mwatch_trainer.probe.probe' in sys.modules))
if __name__ == '__main__':
    context = multiprocessing.get_context('spawn')
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get()[1])
    process.join()
    code = "import sys; print('mwatch_trainer.probe.probe' in sys.modules)"
    print(subprocess.run([sys.executable, '-c', code], capture_output=True).stdout)
    print(subprocess.run([sys.executable, '-'], input=code.encode(), capture_output=True).stdout)
    sys.stdin.readline()
"""


def test_spawned_children_inherit_the_rank_and_no_probe(volume: Path) -> None:
    with running(SPAWNS, volume) as child:
        beat = beat_after(volume)
        code, out, err = finished(child)
    assert (code, err) == (0, "")
    assert out.splitlines() == ["False", r"b'False\n'", r"b'False\n'"]
    assert beat.pid == child.pid
    assert [path.name for path in (volume / "probe").iterdir()] == ["rank-0"]


def test_a_second_process_that_takes_itself_for_the_same_rank_does_not_write(
    volume: Path,
) -> None:
    with running(WAIT, volume) as first:
        beat = beat_after(volume)
        with running(WAIT, volume) as second:
            later = beat_after(volume, beat.ticks + 2)
            assert (beat.pid, later.pid) == (first.pid, first.pid)
            os.kill(first.pid, signal.SIGKILL)
            taken = wait_for(
                lambda: found if (found := record_of(volume)) and found.pid == second.pid else None,
                "the second to take over",
            )
            assert taken.started >= beat.started


def test_a_rank_that_replaces_itself_goes_on_writing(volume: Path) -> None:
    code = """
import os, sys
if len(sys.argv) < 2:
    os.execv(sys.executable, [sys.executable, __file__, 'again'])
sys.stdin.readline()
"""
    with running(code, volume) as child:
        beat = beat_after(volume, 1)
        assert finished(child) == (0, "", "")
    assert beat.pid == child.pid


def test_it_is_seen_before_the_program_runs(volume: Path) -> None:
    with running("import os\nos._exit(4)", volume) as child:
        assert finished(child) == (4, "", "")
    beat = record_of(volume)
    assert beat is not None
    assert beat.pid == child.pid and beat.ticks >= 1


def test_a_stopped_rank_writes_no_more(volume: Path) -> None:
    with running(WAIT, volume) as child:
        beat_after(volume)
        os.kill(child.pid, signal.SIGSTOP)
        wait_for(lambda: True if state_of(child.pid) == "T" else None, "it to be stopped")
        with running(WAIT, volume, {**WORKER, "RANK": "1"}):
            still = record_of(volume)
            beat_after(volume, 2, rank=1)
            assert record_of(volume) == still
        os.kill(child.pid, signal.SIGCONT)
        assert still is not None
        beat_after(volume, still.ticks)
