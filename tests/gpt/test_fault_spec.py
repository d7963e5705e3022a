# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a fault is asked for with."""

from __future__ import annotations

import pytest

from mwatch_gpt.fault_spec import HELP, InjectedFault, Kind, parse, split


def test_a_fault_has_a_kind_a_step_and_options() -> None:
    assert parse("kill@40") == InjectedFault(Kind.KILL, 40, None, None)
    assert parse("slow@5:rank=0:seconds=0.25") == InjectedFault(Kind.SLOW, 5, 0, 0.25)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill", "is not KIND@STEP"),
        ("kill@", "is not KIND@STEP"),
        ("kill@-1", "is not KIND@STEP"),
        ("explode@3", "unknown fault 'explode': one of hang-collective"),
        ("kill@3:rank=1.5", "a number that cannot be read"),
        ("kill@3:seconds=1.2.3", "a number that cannot be read"),
        ("kill@3:node=1", "unknown option 'node'"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_the_environment_names_several() -> None:
    assert split(" kill@40, nan@60  exit0@9 ") == ["kill@40", "nan@60", "exit0@9"]
    assert split("") == []


def test_one_rank_fails_unless_the_kind_is_about_all() -> None:
    assert [parse("kill@1").concerns(rank, 3) for rank in range(3)] == [False, False, True]
    assert [parse("kill@1:rank=0").concerns(rank, 3) for rank in range(3)] == [True, False, False]
    assert [parse("exit0@1").concerns(rank, 2) for rank in range(2)] == [True, True]
    assert [parse("corrupt-checkpoint@1").concerns(rank, 2) for rank in range(2)] == [True, False]


def test_a_fault_of_a_save_waits_for_one_and_others_do_not() -> None:
    assert parse("hang-save@30").is_due(40)
    assert not parse("hang-save@30").is_due(29)
    assert not parse("kill@30").is_due(31)


def test_every_kind_is_explained() -> None:
    assert set(HELP) == set(Kind)
