# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How what the rules found is weighed against what a log reads like."""

from __future__ import annotations

import pytest

from mwatch.classifier.arbiter import Arbiter, RulesFound, of_action, of_cause
from mwatch.classifier.classifier import Scores
from mwatch.model.cause import Cause
from mwatch.model.decision import Action

WORDS = Scores(
    {Cause.OOM: 1.0, Cause.FABRIC: -1.0, Cause.NAN: -2.0},
    {Action.NONE: -1.0, Action.RESTART: 0.0, Action.STOP: 1.0},
    {},
)
EITHER = {Cause.OOM: (Action.RESTART, Action.STOP)}


def found(source: str, cause: Cause = Cause.FABRIC) -> RulesFound:
    return RulesFound(cause, Action.RESTART, source, 0.6, frozenset({("crashed", cause)}))


@pytest.mark.parametrize(("source", "cause"), [("crashed", Cause.FABRIC), ("log_end?", Cause.OOM)])
def test_how_it_was_found_decides_whether_it_stands(source: str, cause: Cause) -> None:
    arbiter = Arbiter({"score": 1.0, "rules crashed": 5.0})
    weighed = arbiter.weigh(found(source), WORDS, EITHER)
    assert weighed.cause is cause
    assert (weighed.share > weighed.of_rules) is (cause is Cause.OOM)


def test_shares_are_of_one() -> None:
    weighed = Arbiter({"score": 1.0}).weigh(found("crashed"), WORDS, EITHER)
    assert 0.0 < weighed.of_rules < weighed.share < weighed.share + weighed.of_rules < 1.0


def test_a_cause_that_the_words_do_not_know_is_weighed_too() -> None:
    arbiter = Arbiter({"score": 1.0, "rules": 9.0})
    weighed = arbiter.weigh(found("crashed", Cause.RERUN), WORDS, EITHER)
    assert weighed.cause is Cause.RERUN


def test_only_actions_that_may_be_right_are_chosen() -> None:
    arbiter = Arbiter({"score": 9.0, "action none": 9.0})
    assert arbiter.weigh(found("crashed"), WORDS, EITHER).action is not Action.NONE
    assert arbiter.weigh(found("crashed"), WORDS, {}).action is Action.NONE


def test_how_far_a_stop_leads_over_what_the_rules_would_do() -> None:
    doubtful, clear = Arbiter({"action stop": 0.5}), Arbiter({"action stop": 5.0})
    shown = [each.weigh(found("crashed"), WORDS, EITHER).stops for each in (doubtful, clear)]
    assert 0.0 < shown[0] < 0.5 < shown[1] < 1.0


def test_features_say_who_found_it() -> None:
    assert "found by crashed" in of_cause(found("crashed"), WORDS, Cause.FABRIC)
    assert "rules crashed fabric" in of_cause(found("crashed"), WORDS, Cause.FABRIC)
    assert not {"rules", "found by crashed"} & set(of_cause(found("crashed"), WORDS, Cause.OOM))
    assert "rules act" in of_action(found("crashed"), WORDS, Cause.OOM, Action.RESTART)
