# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's TensorBoard files: progress of this run, and of no other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mwatch.model.event import Iteration
from mwatch.model.observation import Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.sources.tensorboard import TensorboardEvents
from support.builders.volume import ManualClock
from support.fakes.tensorboard_files import framed, scalar, version, write

WAIT = 60.0
NAME = "events.out.tfevents.1700000000.host.1.0"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.source = TensorboardEvents(
            str(folder), "pod-0", clock=self.clock, wall=self.clock.wall
        )

    def look(self, after: float = 10.0) -> tuple[SignState, float] | None:
        """The state, and how long ago it was so."""
        self.clock.now += after
        reading = self.source.read_now(WAIT)
        assert not isinstance(reading, Failed), reading
        if not isinstance(reading, Ok) or not reading.value:
            return None
        (seen,) = reading.value
        assert isinstance(seen.what, Sign)
        assert (seen.what.source, seen.what.rank) == (SignSource.TENSORBOARD, None)
        return seen.what.state, self.clock.wall() - seen.at

    def writes(self, *steps: int, name: str = NAME, ago: float = 0.0, tag: str = "lm loss") -> None:
        moment = self.clock.wall() - ago
        write(self.folder / name, *(scalar(step, moment, tag) for step in steps))

    def begins(self, name: str = NAME) -> None:
        write(self.folder / name, framed(version(self.clock.wall())))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_folder_that_is_not_there_yet_is_absent(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "later")
    assert bench.look() is None
    assert isinstance(bench.source.read(), Absent)
    assert bench.source.iteration is None


def test_new_steps_are_progress_at_the_moment_that_they_show(bench: Bench) -> None:
    assert bench.look() is None
    bench.begins()
    bench.clock.now += 5.0
    bench.writes(1, 2, 3, ago=2.0)
    assert bench.look(after=3.0) == (SignState.MOVING, 5.0)
    assert bench.source.iteration == 3
    assert bench.look() is None


def test_what_an_earlier_run_left_in_the_folder_is_no_progress(bench: Bench) -> None:
    bench.writes(500, 501, ago=2.0)
    assert bench.look() is None
    assert bench.look() is None
    assert bench.source.iteration is None
    new = NAME.replace("1700000000", "1700009999")
    bench.begins(new)
    bench.writes(401, name=new)
    assert bench.look() == (SignState.MOVING, 10.0)
    assert bench.source.iteration == 401, "a resumed run begins below what was there"


def test_old_files_that_are_copied_in_later_are_no_progress(bench: Bench) -> None:
    bench.look()
    bench.writes(500, 501, ago=3600.0)
    assert bench.look() is None
    assert bench.source.iteration is None


def test_a_watcher_that_starts_late_follows_the_file_from_there(bench: Bench) -> None:
    bench.writes(*range(1, 50), ago=500.0)
    bench.look()
    bench.writes(50)
    assert bench.look() == (SignState.MOVING, 10.0)
    assert bench.source.iteration == 50


def test_charts_over_samples_are_not_steps(bench: Bench) -> None:
    bench.look()
    bench.writes(7)
    bench.writes(7 * 1024, tag="lm loss vs samples")
    bench.look()
    assert bench.source.iteration == 7


def test_what_mwatch_writes_there_itself_is_no_progress(bench: Bench) -> None:
    bench.look()
    bench.writes(99, name=f"{NAME}.mwatch")
    (bench.folder / "mwatch").mkdir()
    bench.writes(99, name=f"mwatch/{NAME}")
    assert bench.look() is None
    assert bench.source.iteration is None


def test_a_value_that_is_written_again_is_no_progress(bench: Bench) -> None:
    bench.look()
    bench.writes(7)
    assert bench.look() == (SignState.MOVING, 10.0)
    bench.writes(7, 7, 6, tag="grad-norm")
    assert bench.look() is None


def test_steps_that_a_writer_held_back_say_nothing_of_now(bench: Bench) -> None:
    """The job hung two minutes ago, and only now its last records come to the disk."""
    bench.look()
    bench.clock.now += 200.0
    bench.writes(8, 9, ago=110.0)
    assert bench.look() is None
    assert bench.source.iteration == 9


def test_nothing_is_still_before_the_writers_own_pauses_allow_it(bench: Bench) -> None:
    bench.look()
    for step in range(1, 6):
        bench.writes(step, ago=1.0)
        assert bench.look() == (SignState.MOVING, 11.0)
        for _ in range(11):
            assert bench.look() is None
    for _ in range(24):
        assert bench.look() is None
    found = bench.look(after=20.0)
    assert found is not None
    assert found[0] is SignState.FLAT


def test_a_writer_of_unknown_pace_is_never_called_still(bench: Bench) -> None:
    bench.look()
    bench.writes(1)
    bench.look()
    assert bench.look(after=7200.0) is None


def test_a_run_that_logs_every_second_is_not_still_for_four_minutes(bench: Bench) -> None:
    bench.look()
    for step in range(1, 20):
        bench.writes(step)
        bench.look()
    assert bench.look(after=200.0) is None
    assert bench.look(after=60.0) is not None


def test_a_moment_ahead_of_all_clocks_is_not_believed(bench: Bench) -> None:
    bench.look()
    bench.writes(10**6, ago=-1e9)
    bench.writes(10**6, ago=float("nan"))
    bench.writes(4)
    bench.look()
    assert bench.source.iteration == 4


def test_a_file_that_breaks_is_a_failure_and_the_next_one_is_followed(bench: Bench) -> None:
    bench.look()
    write(bench.folder / NAME, b"this is not a file of TensorBoard")
    assert isinstance(bench.source.read_now(WAIT), Failed)
    bench.writes(3, name=f"{NAME}.next")
    assert bench.look() == (SignState.MOVING, 10.0)


def test_a_file_that_is_written_anew_under_its_name_is_read_anew(bench: Bench) -> None:
    bench.look()
    bench.writes(*range(1, 30))
    bench.look()
    (bench.folder / NAME).unlink()
    bench.clock.now += 30.0
    bench.writes(40)
    assert bench.look() == (SignState.MOVING, 10.0)
    assert bench.source.iteration == 40


def test_other_files_of_the_folder_are_left_alone(bench: Bench) -> None:
    bench.look()
    (bench.folder / "notes.txt").write_text("tensorboard")
    (bench.folder / "events.out.tfevents.folder").mkdir()
    assert bench.look() is None


def test_the_writer_that_megatron_uses_is_followed_as_it_flushes(tmp_path: Path) -> None:
    reason = "torch is not installed here: it comes with the extra `demo`"
    torch_tensorboard = pytest.importorskip("torch.utils.tensorboard", reason=reason)
    earlier = torch_tensorboard.SummaryWriter(log_dir=str(tmp_path))
    earlier.add_scalar("lm loss", 9.0, 900)
    earlier.close()
    source = TensorboardEvents(str(tmp_path), "pod-0")
    assert isinstance(source.read_now(WAIT), Absent)
    writer = torch_tensorboard.SummaryWriter(log_dir=str(tmp_path), filename_suffix=".second")
    for step in (1, 2, 3):
        writer.add_scalar("lm loss", 2.5, step)
        writer.add_scalar("lm loss vs samples", 2.5, 16 * step)
        writer.flush()
        reading = source.read_now(WAIT)
        assert isinstance(reading, Ok)
        (seen,) = reading.value
        assert isinstance(seen.what, Sign)
        assert seen.what.state is SignState.MOVING
        assert source.iteration == step
    writer.close()
    assert source.read_now(WAIT) == Ok(())


def test_a_file_system_that_hangs_holds_nobody_up(bench: Bench) -> None:
    held = threading.Event()
    source = TensorboardEvents(
        str(bench.folder), "pod-0", limit_seconds=5.0, clock=bench.clock, wall=lambda: _wait(held)
    )
    assert isinstance(source.read(), Absent)
    bench.clock.now += 6.0
    reading = source.read()
    held.set()
    assert reading == Failed("no answer for 6 s")


def _wait(held: threading.Event) -> float:
    """The first call is that of the constructor; later ones come from the thread of a look."""
    if threading.current_thread() is not threading.main_thread():
        held.wait(WAIT)
    return 1.0


def test_without_a_log_each_step_comes_with_its_losses_once_all_of_it_is_there(
    tmp_path: Path,
) -> None:
    clock, has_log = ManualClock(), [False]
    source = TensorboardEvents(
        str(tmp_path), "pod-0", has_log=lambda: has_log[0], clock=clock, wall=clock.wall
    )

    def look() -> list[tuple[int, dict[str, float], float | None]]:
        clock.now += 10.0
        reading = source.read_now(WAIT)
        assert not isinstance(reading, Failed)
        found = [each.what for each in reading.value] if isinstance(reading, Ok) else []
        steps = [each for each in found if isinstance(each, Iteration)]
        assert all(each.line == 0 for each in steps)
        return [(each.iteration, dict(each.losses), each.grad_norm) for each in steps]

    look()
    moment = clock.wall()
    for step in (1, 2):
        write(tmp_path / NAME, scalar(step, moment), scalar(step, moment, "grad-norm"))
        write(tmp_path / NAME, scalar(step * 8, moment, "lm loss vs samples"))
    assert look() == [(1, {"lm loss": 2.5}, 2.5)]
    assert look() == [(2, {"lm loss": 2.5}, 2.5)], "no more records of it have come"
    assert look() == []
    has_log[0] = True
    write(tmp_path / NAME, scalar(3, clock.wall()), scalar(4, clock.wall()))
    assert look() == [], "the log reports them"
    has_log[0] = False
    assert look() == [(4, {"lm loss": 2.5}, None)]
