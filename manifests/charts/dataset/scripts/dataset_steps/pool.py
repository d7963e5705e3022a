# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Many things at a time; what failed is told when all have been tried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Callable, Iterable

from dataset_steps.problem import Problem, Settled
from dataset_steps.say import say

_SHOWN = 20


def each_of(what: str, items: Iterable[Any], workers: int, act: Callable[[Any], Any]) -> list[Any]:
    """The answers, in no order. Problem, with a list, where any of them failed."""
    todo = list(items)
    answers: list[Any] = []
    failures: list[Problem] = []
    with ThreadPoolExecutor(max_workers=workers) as pool:
        futures = [pool.submit(act, each) for each in todo]
        for future in as_completed(futures):
            try:
                answers.append(future.result())
            except Settled as error:
                failures.append(error)
                # What no retry fixes fails for all: a token, a full disk.
                for each in futures:
                    each.cancel()
                break
            except Problem as error:
                failures.append(error)
            _progress(what, len(answers), len(todo))
    for failure in failures[:_SHOWN]:
        say(f"FAILED {failure}")
    if failures:
        kind = Settled if any(isinstance(each, Settled) for each in failures) else Problem
        raise kind(f"{what}: {len(failures)} of {len(todo)} failed; the first: {failures[0]}")
    return answers


def _progress(what: str, done: int, whole: int) -> None:
    step = max(1, whole // 20)
    if done and (done % step == 0 or done == whole):
        say(f"{what}: {done} of {whole}")
