# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What successive answers of RAS say together; nothing too early, nobody wrongly named."""

from __future__ import annotations

from collections.abc import Mapping

from mwatch.model.observation import SignSource, SignState
from mwatch.model.snapshot.pod import Nccl
from mwatch.parse.ras import read_answer
from mwatch.sources.nccl_ras import RasCounts, RasReport
from support.fakes.ras_answers import Comm, Lost, apart, as_json, as_text, place, row

WORLD, TENSOR = 0xA, 0xB
FLAT, MOVING, UNKNOWN = SignState.FLAT, SignState.MOVING, SignState.UNKNOWN


class Story:
    """Answers, each some seconds after the last."""

    def __init__(self, world_size: int | None = None) -> None:
        self.counts = RasCounts()
        self.world_size = world_size
        self.at = 1000.0
        self.last: RasReport | None = None

    def hear(self, text: str, after: float = 10.0) -> RasReport:
        self.at += after
        answer = read_answer(text)
        if self.counts.is_of_another_job(answer):
            self.counts = RasCounts()
        self.last = self.counts.report(self.at, answer, self.world_size)
        return self.last

    def hears(self, *texts: str, after: float = 10.0) -> RasReport:
        return [self.hear(text, after) for text in texts][-1]


def states(told: RasReport) -> dict[int | None, SignState]:
    assert all(sign.source is SignSource.NCCL_RAS for sign in told.signs)
    return {sign.rank: sign.state for sign in told.signs}


def world(*begun: int, lost: tuple[Lost, ...] = ()) -> str:
    return as_json(Comm(WORLD, dict(enumerate(begun)), lost))


def test_counts_that_rise_move() -> None:
    told = Story().hears(world(5, 5), world(6, 6))
    assert states(told) == {None: MOVING}
    assert told.nccl == Nccl(1, 0, 0, 6)
    assert told.is_calm


def test_a_first_answer_says_nothing() -> None:
    told = Story().hear(world(5, 5))
    assert states(told) == {None: UNKNOWN}
    assert not told.is_calm


def test_counts_are_still_only_at_the_third_answer() -> None:
    story = Story()
    story.hears(world(5, 5), world(6, 6))
    assert states(story.hear(world(6, 6))) == {None: UNKNOWN}
    assert states(story.hear(world(6, 6))) == {None: FLAT}


def test_steps_that_take_minutes_are_not_called_still() -> None:
    """Four minutes between the collectives of two steps: still after eight, not after one."""
    story = Story()
    for step in range(6):
        story.hears(*[world(step, step)] * 16, after=15.0)
    assert states(story.hears(*[world(5, 5)] * 12, after=15.0))[None] is UNKNOWN
    assert states(story.hears(*[world(5, 5)] * 20, after=15.0))[None] is FLAT


def test_one_long_save_does_not_make_it_blind_for_long() -> None:
    story = Story()
    for step in range(12):
        story.hear(world(step, step))
    story.hears(*[world(12, 12)] * 60)
    for step in range(13, 40):
        story.hear(world(step, step))
    assert states(story.hears(*[world(40, 40)] * 4))[None] is FLAT


def test_counts_that_nobody_saw_move_must_stand_for_a_minute() -> None:
    story = Story()
    assert states(story.hears(*[world(6, 6)] * 6))[None] is UNKNOWN
    assert states(story.hear(world(6, 6)))[None] is FLAT


def test_counts_of_zero_prove_nothing_however_long() -> None:
    """A job of send and receive alone, which RAS does not count."""
    assert states(Story().hears(*[world(0, 0)] * 50))[None] is UNKNOWN


def test_a_difference_in_flight_is_no_mismatch() -> None:
    story = Story()
    for step in range(5, 20):
        assert story.hear(world(step, step - 1)).nccl.mismatched == 0


def test_a_difference_that_stays_is_a_mismatch_and_names_who_is_behind() -> None:
    story = Story()
    story.hears(world(5, 5, 5, 5), world(8, 7, 8, 8), world(8, 7, 8, 8))
    told = story.hear(world(8, 7, 8, 8))
    assert told.nccl.mismatched == 1
    assert states(told) == {None: FLAT, 1: SignState.BEHIND}
    assert not told.is_calm


def test_who_catches_up_is_no_longer_behind() -> None:
    story = Story()
    story.hears(world(5, 5, 5), *[world(8, 7, 8)] * 3)
    assert states(story.hear(world(9, 9, 9))) == {None: MOVING, 1: UNKNOWN}
    assert states(story.hear(world(10, 10, 10))) == {None: MOVING}


def tensor_pairs(counts: Mapping[int, int]) -> list[Comm]:
    """Two communicators of two, the global ranks 0, 1 and 2, 3: numbered 0 and 1 in each."""
    return [
        Comm(TENSOR, {0: counts[0], 1: counts[1]}, pids={0: 4000, 1: 4001}),
        Comm(TENSOR + 1, {0: counts[2], 1: counts[3]}, pids={0: 4002, 1: 4003}),
    ]


def test_the_chain_of_who_waits_for_whom_ends_at_one_rank() -> None:
    """Rank 3 is behind rank 2 in their pair; both are behind in the world, waited for by others."""
    story = Story(world_size=4)
    stuck = as_json(
        Comm(WORLD, {0: 50, 1: 50, 2: 49, 3: 49}), *tensor_pairs({0: 9, 1: 9, 2: 9, 3: 8})
    )
    moving = as_json(
        Comm(WORLD, dict.fromkeys(range(4), 40)), *tensor_pairs(dict.fromkeys(range(4), 7))
    )
    told = story.hears(moving, stuck, stuck, stuck)
    assert states(told) == {None: FLAT, 3: SignState.BEHIND}


def test_without_a_communicator_of_the_world_nobody_is_named() -> None:
    story = Story(world_size=4)
    stuck = as_json(*tensor_pairs({0: 9, 1: 9, 2: 9, 3: 8}))
    told = story.hears(as_json(*tensor_pairs(dict.fromkeys(range(4), 7))), stuck, stuck, stuck)
    assert states(told) == {None: FLAT}
    assert told.nccl.mismatched == 1


def test_where_most_are_behind_nobody_is_named() -> None:
    story = Story()
    told = story.hears(world(5, 5, 5), *[world(8, 7, 7)] * 3)
    assert states(told) == {None: FLAT}


def test_a_rarely_used_communicator_with_a_difference_blames_nobody_while_others_move() -> None:
    story = Story()
    told = story.hears(
        *(as_json(Comm(WORLD, {0: step, 1: step}), Comm(TENSOR, {0: 3, 1: 2})) for step in range(6))
    )
    assert states(told) == {None: MOVING}
    assert told.nccl.mismatched == 1


def test_a_rank_that_ras_gave_up_is_dead_and_reported_once() -> None:
    story = Story()
    gone = as_json(Comm(WORLD, {0: 8, 2: 8}, [Lost(1, is_dead=True)]))
    story.hear(world(5, 5, 5))
    assert states(story.hear(gone)) == {None: MOVING}
    told = story.hear(gone)
    assert states(told) == {None: UNKNOWN, 1: SignState.DEAD}
    assert told.nccl.missing_ranks == 1
    assert states(story.hear(gone)) == {None: FLAT}


def test_a_rank_that_is_only_slow_to_answer_is_not_dead() -> None:
    story = Story()
    told = story.hears(world(5, 5), *[as_json(Comm(WORLD, {0: 5}, [Lost(1)]))] * 5)
    assert SignState.DEAD not in states(told).values()
    assert told.nccl.missing_ranks == 1


def test_a_rank_that_ras_gave_up_while_training_goes_on_is_not_dead() -> None:
    """The network of RAS is not that of the job."""
    story = Story()
    told = story.hears(
        *(as_json(Comm(WORLD, {0: n, 2: n}, [Lost(1, is_dead=True)])) for n in range(5))
    )
    assert states(told) == {None: MOVING}


def test_ranks_that_fall_silent_do_not_look_like_movement() -> None:
    story = Story()
    story.hears(world(5, 5, 5), world(6, 6, 6))
    told = story.hears(*[as_json(Comm(WORLD, {0: 6, 2: 6}, [Lost(1)]))] * 3)
    assert states(told)[None] is FLAT


def test_another_job_at_the_same_address_begins_anew() -> None:
    story = Story()
    story.hears(*[world(6, 6)] * 8)
    assert states(story.hear(as_json(Comm(0xCC, {0: 1, 1: 1}))))[None] is UNKNOWN


def test_two_jobs_that_answer_in_turns_are_never_judged() -> None:
    story = Story()
    pair = (world(6, 6), as_json(Comm(0xCC, {0: 9, 1: 8})))
    assert {states(story.hear(text))[None] for text in pair * 20} == {UNKNOWN}


def test_a_communicator_that_is_being_left_is_no_mismatch() -> None:
    leaving = as_json(Comm(WORLD, {0: 5, 1: 4}, finalizing=frozenset({0})))
    assert Story().hears(*[leaving] * 9).nccl.mismatched == 0


EQUAL = as_text([row()])


def behind(most: int, late: Mapping[int, int]) -> str:
    return as_text([row(errors="MISMATCH")], warnings=apart(most, late))


def test_text_of_equal_ranks_says_neither_that_it_moves_nor_that_it_stands() -> None:
    told = Story().hears(*[EQUAL] * 30)
    assert states(told) == {None: UNKNOWN}
    assert told.nccl == Nccl(1, 0, 0, None)
    assert told.is_calm


def test_text_shows_movement_by_differences_that_come_and_go() -> None:
    story = Story()
    assert states(story.hears(EQUAL, behind(7, {3: 6})))[None] is MOVING
    assert states(story.hear(behind(9, {4: 8})))[None] is MOVING
    assert states(story.hear(EQUAL))[None] is MOVING


def test_text_of_a_difference_that_stays_is_still_and_names_the_rank() -> None:
    story = Story()
    told = story.hears(EQUAL, *[behind(9, {4: 8})] * 3)
    assert states(told) == {None: FLAT, 4: SignState.BEHIND}
    assert told.nccl.mismatched == 1


def test_text_names_nobody_in_a_communicator_that_is_not_the_world() -> None:
    story = Story(world_size=64)
    assert states(story.hears(EQUAL, *[behind(9, {4: 8})] * 3)) == {None: FLAT}


def test_text_shows_a_dead_rank() -> None:
    errors = (
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 4021 on node 10.0.0.3 managing GPU 5\n\n"
        "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        f"  Rank 21 -- {place(21)}\n\n"
    )
    told = Story().hears(EQUAL, as_text([row(errors="INCOMPLETE")], errors))
    assert states(told) == {None: UNKNOWN, 21: SignState.DEAD}
    assert told.nccl.missing_ranks == 1


def test_two_ranks_of_one_process_are_not_distinguished() -> None:
    shared = {rank: 4000 for rank in range(4)}
    stuck = as_json(
        Comm(WORLD, dict.fromkeys(range(4), 5), pids=shared),
        Comm(TENSOR, {0: 9, 1: 8, 2: 9}, pids=shared),
    )
    told = Story(world_size=4).hears(*[stuck] * 8)
    assert states(told) == {None: FLAT}


def test_groups_that_are_not_named_blame_nobody() -> None:
    halves = (
        "#0-0 (27a079b828ff1a75) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  16 ranks have launched up to operation 6650\n"
        "  16 ranks have launched up to operation 6649\n\n"
    )
    story = Story()
    told = story.hears(EQUAL, *[as_text([row(errors="MISMATCH")], warnings=halves)] * 3)
    assert states(told) == {None: FLAT}
    named = behind(6651, {4: 6649})
    assert states(story.hear(named))[None] is MOVING


def test_what_moved_during_a_long_time_without_answers_says_nothing_of_now() -> None:
    story = Story()
    story.hears(world(5, 5), world(6, 6))
    assert states(story.hear(world(999, 999), after=600.0)) == {None: UNKNOWN}
    assert states(story.hears(world(999, 999), world(999, 999))) == {None: FLAT}
