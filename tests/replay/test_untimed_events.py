# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines without a time of a pod that prints no iterations, beside one that does."""

from __future__ import annotations

from mwatch.model.event import Checkpoint, Fault, Phase
from mwatch.model.observation import Observed
from mwatch.replay.event_times import place
from support.builders.events import events, log, megatron_line

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
START = "[before the start of training step] datetime: 2026-01-07 10:00:00 "


def rank_0(text: str, at: float) -> list[Observed]:
    """As `Moments` gives them: without a stamp they have the time of the last one."""
    return [Observed(at, "zero", event) for event in events(text, faults=True)]


def steps(*moments: tuple[int, float]) -> list[Observed]:
    """Lines of interval 1 whose iteration took a second."""
    change = {"elapsed time per iteration (ms)": "1000.0"}
    lines = log(*(megatron_line(number, change=change) for number, _ in moments))
    return [
        Observed(at, "last", event) for event, (_, at) in zip(events(lines), moments, strict=True)
    ]


def saved(number: int) -> str:
    return log(f"saving checkpoint at iteration {number:7d} to /ck in torch_dist format",
               f"  successfully saved checkpoint from iteration {number:7d} to /ck")  # fmt: skip


def placed(*observed: Observed, end: float | None = None) -> list[tuple[float, str, object]]:
    merged = sorted(observed, key=lambda each: each.at)
    return [(at, stream, type(what)) for at, stream, what in place(merged, {"zero": end})]


def times(found: list[tuple[float, str, object]], kind: type) -> list[float]:
    return [at for at, _, what in found if what is kind]


def test_a_save_lies_between_its_iteration_and_the_next() -> None:
    found = placed(
        *rank_0(START, 0.0), *rank_0(saved(2), 0.0),
        *steps((1, 10.0), (2, 11.0), (3, 32.0), (4, 33.0)),
    )  # fmt: skip
    assert times(found, Checkpoint) == [11.0, 31.0]
    assert [at for at, _, _ in found] == sorted(at for at, _, _ in found)


def test_several_saves_keep_their_order() -> None:
    found = placed(
        *rank_0(START, 0.0), *rank_0(saved(2) + saved(3), 0.0),
        *steps((1, 10.0), (2, 11.0), (3, 32.0), (4, 53.0)),
    )  # fmt: skip
    assert times(found, Checkpoint) == [11.0, 31.0, 32.0, 52.0]


def test_a_save_of_an_earlier_attempt_does_not_count_for_the_next() -> None:
    start = "using world size: 2, data-parallel size: 2"
    again = [Observed(100.0, "zero", event) for event in events(log(start), faults=True)]
    mark = rank_0("[after dataloaders are built] datetime: 2026-01-07 10:01:41 ", 101.0)
    found = placed(
        *rank_0(START, 0.0), *steps((1, 10.0), (2, 11.0), (3, 12.0)),
        *again, *mark, *[each._replace(at=101.0) for each in rank_0(saved(2), 101.0)],
        *steps((2, 120.0), (3, 140.0)),
    )  # fmt: skip
    assert times(found, Checkpoint) == [120.0, 139.0]


def test_other_lines_wait_for_the_next_stamp_of_their_pod() -> None:
    found = placed(
        *rank_0(START, 0.0), *rank_0(OOM, 0.0), *steps((1, 10.0), (2, 11.0)),
        *rank_0("[after training is done] datetime: 2026-01-07 10:00:20 ", 20.0),
    )  # fmt: skip
    assert times(found, Fault) == [20.0]


def test_last_words_belong_to_where_the_others_fell_silent() -> None:
    lines = steps((1, 10.0), (2, 11.0), (3, 50.0))
    found = placed(*rank_0(START, 0.0), *rank_0(OOM, 0.0), *lines, end=11.0)
    assert times(found, Fault) == [11.0]


def test_last_words_of_nobody_in_particular_come_last() -> None:
    found = placed(*rank_0(START, 0.0), *rank_0(OOM, 0.0), *steps((1, 10.0), (2, 11.0)))
    assert times(found, Fault) == [11.0]


def test_stamped_lines_are_not_held_back() -> None:
    found = placed(*rank_0(START, 5.0), *steps((1, 10.0)))
    assert times(found, Phase) == [5.0]


def test_nothing_is_lost() -> None:
    observed = [*rank_0(START, 0.0), *rank_0(saved(9) + log(OOM), 0.0), *steps((1, 10.0))]
    assert len(placed(*observed)) == len(observed)
