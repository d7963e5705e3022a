# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Weigh what the rules found in a log against the classifier's scores.

Each is often right where the other is not. Their weights were learnt from logs on which neither had
been developed, with a log-linear model over a few features such as the detector that found the
cause and the classifier's scores. Causes and actions are weighed in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import exp
from typing import NamedTuple, TypeVar

from mwatch.classifier.classifier import Scores
from mwatch.model.cause import Cause
from mwatch.model.decision import Action

_MOST_CAUSES = 5
"""Number of causes considered, best classifier score first."""
_UNREAD = -1.5
"""Score of a cause that the classifier does not know."""
_Label = TypeVar("_Label", Cause, Action)


class RulesFound(NamedTuple):
    """What the rules concluded.

    `source`: the detector, with `?` for a guess and `+` for an entry of the catalogue; `others`:
    detector and cause of every finding.
    """

    cause: Cause
    action: Action
    source: str
    confidence: float
    others: frozenset[tuple[str, Cause]]


class Weighed(NamedTuple):
    """The weighed cause and action.

    `share`, `of_rules`: probability of the cause, and of the cause that the rules found; `stops`:
    lead of `stop` over the action of the rules, at most 1; `over_nothing`: lead of the action over
    no action, at most 1.
    """

    cause: Cause
    action: Action
    share: float
    of_rules: float
    stops: float
    over_nothing: float


def candidates(rules: RulesFound, scores: Scores) -> list[Cause]:
    first = scores.ranked(scores.causes)[:_MOST_CAUSES]
    return first if rules.cause in first else [rules.cause, *first]


def of_cause(rules: RulesFound, scores: Scores, cause: Cause) -> dict[str, float]:
    """Return the features of a cause."""
    score, most = scores.causes.get(cause, _UNREAD), max(scores.causes.values())
    found = {
        "score": score,
        "behind": score - most,
        "first": float(score >= most),
        f"cause {cause}": 1.0,
    }
    if cause is rules.cause:
        kinds = (
            "rules",
            f"rules {rules.source}",
            f"rules {cause}",
            f"rules {rules.source} {cause}",
        )
        found |= dict.fromkeys(kinds, 1.0) | {"confidence": rules.confidence}
    named = {detector for detector, of_finding in rules.others if of_finding is cause}
    return found | dict.fromkeys((f"found by {each}" for each in named), 1.0)


def of_action(rules: RulesFound, scores: Scores, cause: Cause, action: Action) -> dict[str, float]:
    """Return the features of an action, for a log with this cause."""
    score, most = scores.actions[action], max(scores.actions.values())
    found = {
        f"score {action}": score,
        "action behind": score - most,
        f"action {action}": 1.0,
        f"{action} for {cause}": 1.0,
    }
    if action is rules.action:
        kinds = ("rules act", f"rules {action}", f"rules {rules.source} {action}")
        found |= dict.fromkeys((*kinds, f"rules {action} for {cause}"), 1.0)
        if cause is rules.cause:
            found[f"rules {action} for the same"] = 1.0
    return found


class Arbiter:
    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    def weigh(
        self, rules: RulesFound, scores: Scores, actions: Mapping[Cause, Collection[Action]]
    ) -> Weighed:
        """Weigh causes, then actions. `actions`: allowed actions, for causes that restrict them."""
        those = candidates(rules, scores)
        shares = _shares({each: self._sum(of_cause(rules, scores, each)) for each in those})
        cause = max(those, key=shares.__getitem__)
        acts = actions.get(cause, tuple(Action))
        sums = {each: self._sum(of_action(rules, scores, cause, each)) for each in Action}
        action = max(acts, key=sums.__getitem__)
        stops = _lead(sums, Action.STOP, rules.action)
        over_nothing = _lead(sums, action, Action.NONE)
        return Weighed(cause, action, shares[cause], shares[rules.cause], stops, over_nothing)

    def _sum(self, features: Mapping[str, float]) -> float:
        return sum(self._weights.get(name, 0.0) * value for name, value in features.items())


def _lead(sums: Mapping[Action, float], action: Action, over: Action) -> float:
    """Return the lead of one action over another, considering only these two."""
    both = _shares({each: sums[each] for each in {action, over}})
    return 2 * both[action] - 1


def _shares(sums: Mapping[_Label, float]) -> dict[_Label, float]:
    most = max(sums.values())
    raised = {label: exp(each - most) for label, each in sums.items()}
    total = sum(raised.values())
    return {label: each / total for label, each in raised.items()}
