# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which files are played one after the other as one stream."""

from __future__ import annotations

from pathlib import Path

from mwatch.replay.log_files import LogFile
from mwatch.replay.recording import StreamPlan, plan
from support.builders.events import grammar, log, megatron_line

FAULT = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


def steps(first: int, last: int, hour: int, minute: int = 0) -> str:
    return log(*(
        megatron_line(number, stamp=f"2026-01-07 {hour:02d}:{minute:02d}:{number - first:02d}")
        for number in range(first, last + 1)
    ))  # fmt: skip


def marks(hour: int, minute: int = 0) -> str:
    when = f"2026-01-07 {hour:02d}:{minute:02d}:00"
    return log("using world size: 2, data-parallel size: 2",
               f"[after megatron is initialized] datetime: {when} ",
               f"[before the start of training step] datetime: {when} ")  # fmt: skip


def planned(folder: Path, **texts: str) -> dict[str, list[str]]:
    """Streams by name, each with its files in order; `_` in a keyword is a dot."""
    return {each.name: [file.shown for file in each.files] for each in plans(folder, **texts)}


def plans(folder: Path, **texts: str) -> list[StreamPlan]:
    files = []
    for name, text in texts.items():
        shown = name.replace("__", "-").replace("_", ".")
        (folder / shown).write_text(text)
        files.append(LogFile(str(folder / shown), shown))
    return plan(files, grammar(faults=True))


def test_two_pods_that_write_at_the_same_time_are_two_streams(tmp_path: Path) -> None:
    found = planned(tmp_path, pod0_log=marks(10), pod1_log=steps(1, 20, 10))
    assert found == {"pod0": ["pod0.log"], "pod1": ["pod1.log"]}


def test_two_attempts_of_one_role_are_one_stream(tmp_path: Path) -> None:
    first, second = marks(10) + steps(1, 20, 10), marks(11) + steps(15, 30, 11)
    found = planned(tmp_path, b_log=first, a_log=second)
    assert found == {"b": ["b.log", "a.log"]}


def test_attempts_of_several_pods_go_by_role_and_by_name(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        pod0__try1_log=marks(10), pod0__try2_log=marks(11),
        pod1__try1_log=steps(1, 20, 10), pod1__try2_log=steps(15, 30, 11),
    )  # fmt: skip
    assert sorted(found.values()) == [
        ["pod0-try1.log", "pod0-try2.log"], ["pod1-try1.log", "pod1-try2.log"],
    ]  # fmt: skip


def test_a_rotated_log_is_one_stream_the_oldest_first(tmp_path: Path) -> None:
    found = planned(
        tmp_path,
        t_log=steps(31, 40, 12), t_log_1=steps(21, 30, 11), t_log_2=steps(11, 20, 10),
        t_log_10=steps(1, 10, 9),
    )  # fmt: skip
    assert found == {"t": ["t.log.10", "t.log.2", "t.log.1", "t.log"]}


def test_dates_of_rotation_rise(tmp_path: Path) -> None:
    texts = {"t_log": steps(31, 40, 12), "t_log__20260102": steps(21, 30, 11),
             "t_log__20260101": steps(11, 20, 10)}  # fmt: skip
    assert planned(tmp_path, **texts) == {
        "t": ["t.log-20260101", "t.log-20260102", "t.log"],
    }  # fmt: skip


def test_copies_of_one_log_overlap_and_stay_apart(tmp_path: Path) -> None:
    found = planned(tmp_path, a_log=steps(1, 20, 10), b_log=steps(1, 20, 10))
    assert len(found) == 2


def test_a_silent_pod_stays_apart_whenever_it_speaks(tmp_path: Path) -> None:
    found = planned(tmp_path, a_log=steps(1, 20, 10), b_log=f"2026-01-07 11:00:00 {FAULT}\n")
    assert len(found) == 2


def test_a_dying_word_without_a_time_belongs_to_the_end(tmp_path: Path) -> None:
    found = plans(tmp_path, a_log=steps(1, 20, 10), b_err=f"{FAULT}\n")
    (timed,) = (each for each in found if each.first is not None)
    (other,) = (each for each in found if each.first is None)
    assert other.anchor == timed.last
    assert timed.anchor is None


def test_attempts_without_any_time_follow_each_other_by_name(tmp_path: Path) -> None:
    lines = {number: log(*(megatron_line(each, stamp=None) for each in range(number, number + 9)))
             for number in (1, 5)}  # fmt: skip
    found = planned(tmp_path, run__10_log=lines[5], run__9_log=lines[1])
    assert found == {"run-9": ["run-9.log", "run-10.log"]}


def test_one_file_is_not_looked_at(tmp_path: Path) -> None:
    (only,) = plan([LogFile(str(tmp_path / "no.log"), "no.log")], grammar(faults=True))
    assert (only.name, only.first) == ("no", None)


def test_a_long_file_is_looked_at_from_both_ends(tmp_path: Path) -> None:
    noise = "some noise of a data loader that says nothing at all\n" * 60_000
    found = plans(tmp_path, a_log=marks(10) + noise + steps(1, 20, 11), b_log=steps(21, 40, 12))
    assert [file.shown for file in found[0].files] == ["a.log", "b.log"]
