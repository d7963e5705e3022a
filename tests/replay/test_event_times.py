# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The time of each line of a log: printed, derived, or relative; never backwards."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from mwatch.model.event import Checkpoint, Error, Fault, Iteration, Phase, Validation
from mwatch.model.observation import Observed
from mwatch.replay.event_times import EventTimestamper
from support.builders.events import events, log, megatron_line


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def line(iteration: int, stamp: str | None, ms: float = 1000.0) -> str:
    change = {"elapsed time per iteration (ms)": f"{ms:.1f}"}
    return megatron_line(iteration, stamp=stamp, change=change)


def placed(
    text: str, *, near: float | None = None, anchor: float | None = None, piece: int = 10_000
) -> list[Observed]:
    moments = EventTimestamper("pod-0", near=near, anchor=anchor)
    found = events(text, faults=True)
    out: list[Observed] = []
    for start in range(0, len(found), piece):
        out += moments.observe(found[start : start + piece])
    return out + moments.rest()


def times(text: str, kind: type, *, near: float | None = None) -> list[float]:
    return [each.at for each in placed(text, near=near) if type(each.what) is kind]


def test_a_printed_stamp_is_the_time() -> None:
    text = log(line(1, "2026-01-07 23:58:47.250000"), line(2, "2026-01-07 23:59:01.5"))
    assert times(text, Iteration) == [
        epoch("2026-01-07T23:58:47.25"), epoch("2026-01-07T23:59:01.5"),
    ]  # fmt: skip


def test_lines_before_the_first_stamp_get_its_time() -> None:
    text = log("using world size: 8, data-parallel size: 8", "done with setup ...",
               "[before the start of training step] datetime: 2026-01-07 10:00:00 ")  # fmt: skip
    assert {each.at for each in placed(text)} == {epoch("2026-01-07T10:00:00")}


def test_an_iteration_without_a_stamp_is_later_by_what_it_took() -> None:
    text = log("[before the start of training step] datetime: 2026-01-07 10:00:00 ",
               line(1, None, 5000.0), line(2, None, 2000.0), line(4, None, 1500.0))  # fmt: skip
    start = epoch("2026-01-07T10:00:00")
    assert times(text, Iteration) == [start + 5, start + 7, start + 10]


def test_a_log_without_any_stamp_has_a_clock_from_zero() -> None:
    moments = EventTimestamper("pod-0")
    found = moments.observe(events(log("using world size: 8", line(1, None), line(2, None))))
    assert [each.at for each in found] == [0.0, 1.0, 2.0]
    assert moments.is_relative


def test_a_stamp_that_comes_late_does_not_move_a_relative_clock() -> None:
    text = log(line(1, None), line(2, None), line(3, "2026-01-07 10:00:00"),
               line(4, "2026-01-07 10:00:07"))  # fmt: skip
    assert times(text, Iteration) == [1.0, 2.0, 3.0, 10.0]


def test_a_log_of_one_message_without_a_time_is_not_lost() -> None:
    found = placed("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert [(seen.at, type(seen.what)) for seen in found] == [(0.0, Error), (0.0, Fault)]


def test_the_end_of_a_save_without_a_stamp_is_where_the_next_iterations_began() -> None:
    text = log(line(10, "2026-01-07 10:00:00"),
               "saving checkpoint at iteration      10 to /ck in torch_dist format",
               "  successfully saved checkpoint from iteration      10 to /ck",
               line(11, "2026-01-07 10:00:21", 1000.0))  # fmt: skip
    start = epoch("2026-01-07T10:00:00")
    for piece in (1, 2, 3, 100):
        saves = [each.at for each in placed(text, piece=piece) if type(each.what) is Checkpoint]
        assert saves == [start, start + 20]


def test_the_result_of_a_silent_evaluation_is_where_the_next_iterations_began() -> None:
    rule = "-" * 80
    said = " validation loss at iteration 10 | lm loss value: 6.0E+00 | lm loss PPL: 4.0E+02 | "
    text = log(line(10, "2026-01-07 10:00:00"), rule, said, rule, line(12, "2026-01-07 10:01:00"))
    (result,) = times(text, Validation)
    assert result == epoch("2026-01-07T10:00:58")


def test_an_end_without_a_stamp_is_where_the_next_line_with_one_is() -> None:
    """Else hours of steps without times look like a silence after the end."""
    text = log("[2026-01-07 10:00:00,118] [INFO] [logging.py:96:log_dist] [Rank 0] step=1,"
               " skipped=0, lr=[6e-05], mom=[(0.9, 0.95)]",
               "{'loss': 2.1647, 'learning_rate': 5e-06, 'epoch': 3.0}",
               "{'train_runtime': 12044.1, 'train_loss': 2.3391, 'epoch': 3.0}",
               "[2026-01-07 13:24:40,220] [INFO] [launch.py:460:main] Process 18211 exits"
               " successfully.")  # fmt: skip
    found = placed(text)
    ends = [each.at for each in found if getattr(each.what, "edge", "") == "end"]
    assert len(ends) >= 2
    assert set(ends) == {found[-1].at}


def test_a_result_at_the_end_of_the_log_keeps_the_last_time() -> None:
    text = log(line(10, "2026-01-07 10:00:00"),
               "  successfully saved checkpoint from iteration      10 to /ck")  # fmt: skip
    assert times(text, Checkpoint) == [epoch("2026-01-07T10:00:00")]


@pytest.mark.parametrize(
    ("said", "glog"),
    [
        ("2026-11-15 00:42:00", "E1115 00:42:28.159000"),
        ("2027-01-01 00:00:03", "E0101 00:00:04"),
        ("2025-12-31 23:59:00", "E101 00:00:01.5"),
    ],
)
def test_a_glog_stamp_takes_the_year_of_its_neighbours(said: str, glog: str) -> None:
    fault = f"[rank0]:[{glog} 2540 ProcessGroupNCCL.cpp:607] Watchdog caught collective operation "
    fault += "timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 600 ms before timing out."
    (at,) = times(log(line(1, said), fault), Fault)
    assert 0 < at - epoch(said.replace(" ", "T")) < 120


def test_glog_stamps_alone_take_the_year_of_the_file() -> None:
    fault = "[E1231 23:59:59.5 2540 api.py:986] failed (exitcode: -9) local_rank: 0 (pid: 2) of"
    (at,) = times(log(f"{fault} binary: /usr/bin/python"), Fault, near=epoch("2027-01-02T00:00:00"))
    assert at == epoch("2026-12-31T23:59:59.5")


def test_a_printed_year_counts_more_than_the_age_of_the_file() -> None:
    fault = "[E0304 19:22:23.5 2540 api.py:986] failed (exitcode: -9) local_rank: 0 (pid: 2) of"
    text = log(f"{fault} binary: /usr/bin/python", line(10, "2025-03-04 19:24:02"))
    assert times(text, Fault, near=epoch("2026-11-18T00:00:00"))[0] == epoch(
        "2025-03-04T19:22:23.5"
    )


def test_a_mark_about_the_past_does_not_turn_time_back() -> None:
    text = log("[after in-job setup] datetime: 2026-01-07 10:00:20 ",
               "[before library-setup] datetime: 2026-01-07 10:00:00 ",
               "[after dataloaders are built] datetime: 2026-01-07 10:00:30 ")  # fmt: skip
    start = epoch("2026-01-07T10:00:00")
    assert [each.at - start for each in placed(text)] == [20, 20, 30]
    again = log("[before library-setup] datetime: 2026-01-07 10:00:00 ") + text
    assert [each.at - start for each in placed(again)] == [0, 20, 20, 30]


def test_a_clock_that_was_set_back_goes_on_from_where_it_was() -> None:
    text = log(line(1, "2026-10-25 02:59:59"), line(2, "2026-10-25 02:00:00"),
               line(3, "2026-10-25 02:00:01"))  # fmt: skip
    first, second, third = times(text, Iteration)
    assert (second - first, third - second) == (1.0, 1.0)


def test_an_hour_that_daylight_saving_added_is_no_silence() -> None:
    text = log(line(1, "2026-03-29 01:59:59"), line(2, "2026-03-29 03:00:00"),
               line(3, "2026-03-29 03:00:01"))  # fmt: skip
    first, second, third = times(text, Iteration)
    assert (second - first, third - second) == (1.0, 1.0)


def test_an_hour_that_the_step_itself_took_is_a_silence() -> None:
    text = log(line(1, "2026-03-29 01:59:59"), line(2, "2026-03-29 03:00:00", 3_601_000.0))
    first, second = times(text, Iteration)
    assert second - first == 3601.0


def test_a_gap_that_is_no_zone_stays_a_gap() -> None:
    text = log(line(1, "2026-03-29 01:00:00"), line(2, "2026-03-29 01:52:10"))
    first, second = times(text, Iteration)
    assert second - first == 3130.0


def test_a_collector_in_another_zone_does_not_move_the_clock() -> None:
    oom = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    text = log(f"2026-01-07T10:00:00Z {line(1, '2026-01-07 03:00:00')}",
               f"2026-01-07T10:00:00Z {oom}",
               f"2026-01-07T10:00:01Z {line(2, '2026-01-07 03:00:01')}",
               f"2026-01-07T10:00:03Z {oom}")  # fmt: skip
    start = epoch("2026-01-07T03:00:00")
    seen = placed(text)
    assert [each.at - start for each in seen if type(each.what) is Iteration] == [0, 1]
    between, after = (each.at - start for each in seen if type(each.what) is Fault)
    assert 0 <= between <= 1
    assert 1 <= after <= 5


def test_absurd_numbers_do_not_move_the_clock() -> None:
    text = log("[before the start of training step] datetime: 2026-01-07 10:00:00 ",
               line(1, None, float("nan")), line(2, None, -5.0), line(3, None, 1e300),
               line(4, "2026-13-45 99:99:99"))  # fmt: skip
    start = epoch("2026-01-07T10:00:00")
    assert all(0 <= at - start < 5 for at in times(text, Iteration))


def test_whole_seconds_are_made_finer_by_what_the_steps_took() -> None:
    text = log(*(line(number, f"2026-01-07 10:00:0{number * 400 // 1000}", 400.0)
                 for number in range(20)))  # fmt: skip
    seen = times(text, Iteration)
    gaps = [later - earlier for earlier, later in pairwise(seen)]
    assert all(0.3 < gap < 0.5 for gap in gaps)


def test_a_new_process_starts_where_it_first_shows_the_time_not_where_the_old_one_ended() -> None:
    text = log(line(9, "2026-01-07 10:00:00.0"), "using world size: 8, data-parallel size: 8",
               "[after megatron is initialized] datetime: 2026-01-07 12:00:30 ",
               "[before library-setup] datetime: 2026-01-07 12:00:05 ",
               line(10, "2026-01-07 12:01:00.0"))  # fmt: skip
    starts = [each.at for each in placed(text) if isinstance(each.what, Phase)]
    assert starts[0] == epoch("2026-01-07T12:00:05")


def test_an_anchor_places_a_stream_that_prints_no_stamps() -> None:
    found = placed("RuntimeError: CUDA out of memory. Tried to allocate\n", anchor=77.0)
    assert {seen.at for seen in found} == {77.0}


def test_a_first_stamp_after_steps_without_one_joins_the_clock_that_began_at_zero() -> None:
    lines = log(
        "{'loss': 0.41, 'grad_norm': 0.33, 'iteration': '1239/1240'}",
        "  successfully saved checkpoint from iteration    1240 to /data/out",
        "[E211 22:58:58.190333804 ProcessGroupNCCL.cpp:475] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021 ms",
    )
    timestamper = EventTimestamper("pod", near=1.77e9)
    found = [*timestamper.observe(events(lines, faults=True)), *timestamper.rest()]
    assert timestamper.is_relative
    assert len(found) > 2
    assert all(each.at < 1.0 for each in found)
