# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reading a stack: what it tells, and that it leaves no trace."""

from __future__ import annotations

import sys
import threading
import weakref

from mwatch_trainer.probe import stack as probe_stack
from mwatch_trainer.probe.stack import MAX_DEPTH, digest, of_thread, where
from support.builders.probe import place


class Tensor:
    """Something large that a function holds."""


def test_the_innermost_place_comes_first() -> None:
    def inner() -> probe_stack.Stack:
        return of_thread(threading.get_ident())

    names = [code.co_name for code, _, _ in inner()]
    assert names.index("inner") < names.index("test_the_innermost_place_comes_first")


def test_a_thread_that_is_gone_has_no_stack() -> None:
    assert of_thread(12345) == []
    assert digest([]) == ""
    assert where([]) == ""


def test_nothing_that_a_function_holds_is_kept() -> None:
    kept: list[probe_stack.Stack] = []

    def step() -> weakref.ref[Tensor]:
        tensor = Tensor()
        kept.append(of_thread(threading.get_ident()))
        return weakref.ref(tensor)

    assert step()() is None
    assert kept[0]


def test_the_depth_is_bounded() -> None:
    def deep(levels: int) -> probe_stack.Stack:
        return deep(levels - 1) if levels else of_thread(threading.get_ident())

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        assert len(deep(MAX_DEPTH * 2)) == MAX_DEPTH
    finally:
        sys.setrecursionlimit(limit)


def test_the_hash_changes_with_a_line_and_not_with_what_is_far_out() -> None:
    inner = [place("a.py", "f", 1), *[place("b.py", "g", 2)] * 40]
    assert digest(inner) == digest([*inner, place("c.py", "h", 3)])
    assert digest(inner) != digest([place("a.py", "f", 2), *inner[1:]])
    assert digest(inner) != digest(inner[1:])


def test_people_learn_the_innermost_place_outside_of_libraries() -> None:
    site = "/usr/lib/python3.12/site-packages"
    stack = [
        place(f"{site}/torch/nn/modules/module.py", "_call_impl", 1),
        place("/usr/lib/python3.12/threading.py", "wait", 2),
        place(f"{site}/megatron/core/models/gpt/gpt_model.py", "forward", 3),
        place("/workspace/pretrain_gpt.py", "forward_step", 4),
    ]
    assert where(stack) == "models/gpt/gpt_model.py:3 forward"
    assert where(stack[:2]) == "nn/modules/module.py:1 _call_impl"
