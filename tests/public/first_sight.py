# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the rules said of public cases at first sight: `python -m public.first_sight FILE.toml ...`.

Rules are made after cases, so that they say little about the next log on the cases that they were
made after. So what they say of a new set is kept in `first_sight.jsonl` before anything is learnt
from it: `mwatch.classifier.arbiter` learns from it how far to trust them. If rules are removed,
what they had found is replaced by what the others find. The command adds the sets in these files,
and prints how many cases were judged right with everything that mwatch has.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from mwatch.classifier.arbiter import RulesFound
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay import replay
from mwatch.replay.second_reading import found_by_rules
from mwatch.report.conclusion import RunConclusion
from public.judge import Case, cases_of, judge_here, summary

FILE = Path(__file__).with_name("first_sight.jsonl")


def recorded() -> dict[str, RulesFound]:
    """By the name of the case."""
    return dict(map(_parsed, FILE.read_text("utf-8").splitlines()))


def by_rules(case: Case) -> RulesFound:
    def as_it_is(concluded: RunConclusion, *_: object, **__: object) -> RunConclusion:
        return concluded

    with TemporaryDirectory() as folder, patch.object(replay, "reconsidered", as_it_is):
        saved = Path(folder) / "train.log"
        saved.write_text(case.text)
        report = replay.replay(replay.ReplayRequest([str(saved)]), time.time())
    return found_by_rules(RunConclusion(report.verdict, report.decision, None, report.findings))


def lines(found: Mapping[str, RulesFound]) -> Iterable[str]:
    for name, rules in found.items():
        others = sorted(rules.others)
        yield json.dumps([name, *rules[:-1], others], separators=(",", ":")) + "\n"


def _parsed(line: str) -> tuple[str, RulesFound]:
    name, cause, action, source, confidence, others = json.loads(line)
    named = frozenset((detector, Cause(each)) for detector, each in others)
    return name, RulesFound(Cause(cause), Action(action), source, confidence, named)


def main(files: list[str]) -> int:
    cases = [case for file in files for case in cases_of(Path(file))]
    known = recorded()
    again = [case.name for case in cases if case.name in known]
    if again or not cases:
        why = f"{again[0]} is recorded already" if again else "name the files of new sets"
        print(why, file=sys.stderr)
        return 2
    with FILE.open("a", encoding="utf-8") as file:
        file.writelines(lines({case.name: by_rules(case) for case in cases}))
    print(summary(map(judge_here, cases)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
