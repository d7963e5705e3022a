# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Stories for the tests of the report: recorded from a watched engine, replayed, or by chance."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mwatch.engine.advice import Advice
from mwatch.engine.engine import Assessment, Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Verdict
from mwatch.model.observation import Observation, Observed
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.model import ReportClock
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket, ValueRange
from support.builders.events import events
from support.builders.job import entries

START = 1_000_000.0


class Watch:
    """An engine and a recorder that are told one line a second, as `mwatch run` tells them."""

    def __init__(self, mode: str = "act") -> None:
        self.engine = Engine("run", entries())
        self.recorder = ReportRecorder(
            self.engine, mode, "torchrun pretrain_gpt.py", ReportClock(zone="UTC")
        )
        self.at = START
        self._text = ""
        self._told = 0

    def says(self, *lines: str) -> Assessment:
        for each in lines:
            self.at += 1
            self._text += f"{each}\n"
            found = events(self._text, faults=True)
            for event in found[self._told :]:
                self._tell(event)
            self._told = len(found)
        return self.look()

    def sees(self, what: Observation) -> Assessment:
        self._tell(what)
        return self.look()

    def _tell(self, what: Any) -> None:
        observed = Observed(self.at, "pod-0", what)
        self.engine.observe(observed)
        self.recorder.note(observed)

    def look(self) -> Assessment:
        assessment = self.engine.evaluate(self.at)
        self.recorder.assessed(assessment)
        decision = assessment.decision
        if decision.action is not Action.NONE:  # without the wait that the policy asks for
            self.engine.record_action(decision, self.at)
            self.recorder.enacted(decision, self.at)
        return assessment

    def story(self, *, is_over: bool = False) -> RunReport:
        for each in self.engine.incidents:
            self.recorder.incident(each)
        return self.recorder.report(self.at, is_over=is_over)


def replayed(folder: Path, log: str, name: str = "trainer") -> RunReport:
    file = folder / f"{name}.log"
    file.write_text(log)
    return replay(ReplayRequest([str(file)]), 2e9, has_curves=True)


def quiet(*buckets: Bucket, **change: object) -> RunReport:
    """Of a run that mwatch acts on and that nothing is wrong with."""
    whole = RunReport(
        "run", "act", ReportClock(), Verdict(Cause.HEALTHY, "fine"),
        Decision(Action.NONE, Cause.HEALTHY, 1, "fine"), Advice("nothing to do", None),
        0.0, 100.0, series=buckets,
    )  # fmt: skip
    return replace(whole, **change)  # type: ignore[arg-type]


def by_chance(seed: int, kind: Any = RunReport) -> Any:
    """Any value of the type: what a file that was written by nobody we know may hold."""
    return _value(kind, random.Random(seed), 0)


def _value(kind: Any, chance: random.Random, depth: int) -> Any:
    if get_origin(kind) is UnionType:
        inner = [each for each in get_args(kind) if each is not NoneType]
        return None if chance.random() < 0.3 else _value(inner[0], chance, depth)
    if get_origin(kind) is tuple:
        many = chance.choice((0, 1, 2, 5, 30 if depth < 2 else 3))
        return tuple(_value(get_args(kind)[0], chance, depth + 1) for _ in range(many))
    if get_origin(kind) is Mapping:
        return {"tp": chance.randint(0, 3)}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return chance.choice(list(kind))
    if kind is ValueRange:
        low, mean, high = sorted(_number(chance) for _ in range(3))
        return ValueRange(low, high, mean, chance.randint(1, 9))
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, tuple)):
        hints = get_type_hints(kind)
        return kind(**{name: _value(hint, chance, depth + 1) for name, hint in hints.items()})
    if kind is str:
        return chance.choice(_TEXTS)
    if kind is bool:
        return chance.random() < 0.5
    return _number(chance) if kind is float else chance.choice((0, 1, 7, 10**6, -3, 2**62))


def _number(chance: random.Random) -> float:
    usual = (0.0, 1.0, -1.0, 1e-300, 1e300, -1e300, 1.7e9, 1.7e9 + 5, 65536.0)
    return chance.choice((*usual, chance.gauss(1e9, 1e6)))


_TEXTS = (
    "", "hang", "nan", "critical", "warning", "restart", "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "a" * 500, "\x1b[31m\x00\u202e",
    "\ud800", "<!--", "{0.__class__} %s", "日本語 \U0001f525",
)  # fmt: skip
