# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Runs many seeds on several processes and adds them up in the order of their seeds."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator

from sim.outcome import Outcome
from sim.runner import run
from sim.scenarios import plan_of
from sim.score import Score

_CHUNK = 10


def one(seed: int) -> Outcome:
    plan = plan_of(seed)
    try:
        return run(plan)
    except Exception as error:  # one broken run must not hide the other ten thousand
        failed = Outcome(seed, plan.scenario, plan.is_healthy)
        failed.crash = f"{type(error).__name__}: {error}"
        return failed


def outcomes(first: int, runs: int, jobs: int) -> Iterator[Outcome]:
    seeds = range(first, first + runs)
    if jobs <= 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(one, seeds, _CHUNK)


def score_of(first: int, runs: int, jobs: int, *, shows: bool = False) -> Score:
    score = Score(first_seed=first)
    began = time.monotonic()
    for outcome in outcomes(first, runs, jobs):
        score.add(outcome)
        if shows and (score.runs % 20 == 0 or score.runs == runs):
            _progress(score, runs, time.monotonic() - began)
    if shows:
        print(file=sys.stderr)
    return score


def _progress(score: Score, runs: int, seconds: float) -> None:
    left = seconds / score.runs * (runs - score.runs)
    line = (
        f"\rscorecard: {score.runs}/{runs} runs, false kills {len(score.false_kills)},"
        f" missed {len(score.missed)}, about {left:.0f} s left "
    )
    print(line, end="", file=sys.stderr, flush=True)
