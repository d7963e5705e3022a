# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read the cases of `tests/public/cases` and compare each one's verdict with what it should be.

A file holds the cases of one project, or, if it is named after a plant or a landscape, the set that
one reader of many projects collected without knowing mwatch. Each case has these keys:

- `name`: unique in all files; `kind`: what the user would call it (see `KINDS`)
- `source`: the public thread; `truth`: what it concluded, in one sentence
- `causes`: every verdict that is right, the best one first; `actions`: every right action. Where
  the causes are faults on which somebody has to act, `none` beside another action is not right
- `rank` (where the text proves one): the rank to blame. Any other blamed rank is wrong, and so is
  every blamed rank of a case without this key unless `any_rank = true`
- `text`: the log, written anew as the program prints it

The expectation was decided before mwatch read the text. A case is right if it is judged rightly in
both ways people use: as a saved file and through a pipe.
"""

from __future__ import annotations

import json
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mwatch.replay.replay import ReplayRequest, replay
from support.runs.commands import mwatch

CASES = Path(__file__).parent / "cases"
KINDS = frozenset(
    {
        "benign", "checkpoint", "collective", "crash", "data", "gpu", "hang", "kubernetes",
        "launcher", "memory", "network", "numbers", "software", "storage", "user-code",
    }
)  # fmt: skip


_PASSING = frozenset(
    {
        "healthy", "finished", "unknown", "slow", "loss_spike", "unschedulable", "preempted",
        "drained", "suspended", "deleted_by_user",
    }
)  # fmt: skip
"""Causes on which nobody, or somebody else, may have to act."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: str
    source: str
    truth: str
    causes: tuple[str, ...]
    actions: tuple[str, ...]
    text: str
    rank: int | None = None
    any_rank: bool = False

    @property
    def set_name(self) -> str:
        """That of the set's reader; of a project's file the start of the case's name."""
        return self.name.split("-", 1)[0]

    @property
    def right_actions(self) -> tuple[str, ...]:
        return right_actions(self.causes, self.actions)


def right_actions(causes: tuple[str, ...], actions: tuple[str, ...]) -> tuple[str, ...]:
    """Without `none` where it leaves a person alone with a fault that was named."""
    others = tuple(each for each in actions if each != "none")
    return actions if _PASSING.intersection(causes) or not others else others


@dataclass(frozen=True, slots=True)
class Judged:
    """`verdicts`: (how it was read, cause, action, blamed rank, reported summary)."""

    case: Case
    verdicts: tuple[tuple[str, str, str, int | None, str], ...]

    @property
    def is_right(self) -> bool:
        return all(self._fits(each) for each in self.verdicts)

    def _fits(self, verdict: tuple[str, str, str, int | None, str]) -> bool:
        _, cause, action, rank, _ = verdict
        is_rank_right = self.case.any_rank or rank == self.case.rank
        if rank is None:  # no rank is careful, not wrong, where the text proves one
            is_rank_right = True
        return cause in self.case.causes and action in self.case.right_actions and is_rank_right


def read_cases() -> list[Case]:
    return [case for file in sorted(CASES.glob("*.toml")) for case in cases_of(file)]


def judge(case: Case) -> Judged:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "train.log"
        saved.write_text(case.text)
        verdicts = (
            _verdict("file", mwatch("diagnose", saved, "--json").stdout),
            _verdict("pipe", mwatch("diagnose", "-", "--json", stdin=case.text).stdout),
        )
    return Judged(case, verdicts)


def judge_here(case: Case) -> Judged:
    """The same as a saved file, by the code of `mwatch diagnose` without a process for each."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "train.log"
        saved.write_text(case.text)
        report = replay(ReplayRequest([str(saved)]), time.time())
    culprit, verdict = report.verdict.culprit, report.verdict
    rank = None if culprit is None else culprit.rank
    found = (verdict.cause.value, report.decision.action.value, rank, verdict.summary)
    return Judged(case, (("file", *found),))


def summary(results: Iterable[Judged]) -> str:
    """The hit rate by kind, and every miss."""
    results = list(results)
    lines = [f"{'kind':<12} {'right':>5} {'of':>4}"]
    for kind in sorted({each.case.kind for each in results}):
        of_kind = [each for each in results if each.case.kind == kind]
        lines.append(f"{kind:<12} {sum(each.is_right for each in of_kind):>5} {len(of_kind):>4}")
    right = sum(each.is_right for each in results)
    lines.append(f"{'all':<12} {right:>5} {len(results):>4}  {100 * right / len(results):.1f} %")
    for each in results:
        if not each.is_right:
            lines += ["", *_miss(each)]
    return "\n".join(lines)


def _miss(judged: Judged) -> list[str]:
    case = judged.case
    wanted_rank = "" if case.rank is None else f", rank {case.rank}"
    wanted = f"{' or '.join(case.causes)}; {' or '.join(case.right_actions)}{wanted_rank}"
    lines = [f"{case.name}: wanted {wanted} ({case.truth})"]
    for how, cause, action, rank, text in judged.verdicts:
        blamed = "" if rank is None else f", rank {rank}"
        lines.append(f"    {how}: {cause}; {action}{blamed}: {text}")
    return lines


def _verdict(how: str, text: str) -> tuple[str, str, str, int | None, str]:
    said = json.loads(text)
    culprit = said["verdict"]["culprit"] or {}
    verdict = said["verdict"]
    return (
        how,
        verdict["cause"],
        said["decision"]["action"],
        culprit.get("rank"),
        verdict["summary"],
    )


def cases_of(file: Path) -> list[Case]:
    entries: list[dict[str, Any]] = tomllib.loads(file.read_text())["case"]
    return [
        Case(**{**entry, "causes": tuple(entry["causes"]), "actions": tuple(entry["actions"])})
        for entry in entries
    ]
