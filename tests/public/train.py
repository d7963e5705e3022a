# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Train `mwatch.classifier` on the examples of `public.lessons`: `make classifier`.

Each label is learnt against all others, with a linear support vector machine; where a cause is
right but not the best one, the example says nothing about it. Then the arbiter learns how far to
trust the rules and the words, from what both said of cases that neither had learnt from: the rules
at first sight (`public.first_sight`), the words by leaving out the set of the case.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from mwatch.classifier.arbiter import candidates, of_action, of_cause
from mwatch.classifier.classifier import STEPS, TWICE, Scores, Weights, features, key_of
from mwatch.classifier.numbers import shapes
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from public.first_sight import recorded
from public.judge import Case
from public.lessons import Example, cases_learnt_from, digest, known_texts, lesson

WEIGHTS = Path(__file__).parents[2] / "sidecar/mwatch/classifier/weights.bin"
_MOST_FEATURES = 60_000
_FEWEST_CASES = 3
"""In which a feature occurs."""
_FEWEST_OF_CAUSE = 5
_PENALTY = 3.0
_PARTS = 5
"""Into which the sets are divided, to read each part without having learnt from it."""
_PENALTY_OF_CAUSES, _PENALTY_OF_ACTIONS = 0.5, 0.3
_LEAST = 0.005
"""A smaller weight of the arbiter is left out."""

_Features = Mapping[str, int]


class _Model(NamedTuple):
    vectors: DictVectorizer
    chosen: Any
    causes: list[Cause]
    weights: Any
    biases: list[float]

    @property
    def names(self) -> Any:
        return self.vectors.get_feature_names_out()[self.chosen.get_support()]

    def read(self, texts: Sequence[_Features]) -> list[Scores]:
        matrix = normalize(self.chosen.transform(self.vectors.transform(texts)))
        scores = matrix @ self.weights.T + np.array(self.biases)
        count = len(self.causes)
        return [
            Scores(
                dict(zip(self.causes, map(float, row[:count]), strict=True)),
                dict(zip(Action, map(float, row[count:]), strict=True)),
                {},
            )
            for row in scores
        ]


def trained(cases: Sequence[Case], texts: Sequence[Example]) -> bytes:
    """`texts`: short ones, beside the cases."""
    known = [*map(lesson, cases), *texts]
    counted = [_features(each.text) for each in known]
    model = _model(counted, known)
    scales = np.abs(model.weights).max(axis=1)
    roots = np.sign(model.weights) * np.sqrt(np.abs(model.weights) / scales[:, None])
    steps = np.round(roots * STEPS).astype(np.int8).T
    keys = array("I", [key_of(name) for name in model.names])
    if sys.byteorder == "big":
        keys.byteswap()
    packed = Weights(
        cases=len(known),
        digest=digest(known),
        causes=model.causes,
        actions=list(Action),
        biases=[round(bias, 6) for bias in model.biases],
        scales=[round(float(scale), 6) for scale in scales],
        keys=keys.tobytes(),
        steps=np.ascontiguousarray(steps).tobytes(),
        arbiter=_arbiter(cases, counted, known),
    )
    return zlib.compress(msgspec.msgpack.encode(packed), 9)


def _features(text: str) -> _Features:
    lines = text.splitlines()
    words = dict.fromkeys((feature for _, found in features(lines) for feature in found), 1)
    return words | dict.fromkeys(shapes(lines), TWICE)


def _model(counted: Sequence[_Features], known: Sequence[Example]) -> _Model:
    numbers = Counter(feature for each in counted for feature in each)
    kept = [
        {name: value for name, value in each.items() if numbers[name] >= _FEWEST_CASES}
        for each in counted
    ]
    vectors = DictVectorizer(dtype=np.float32)
    matrix = vectors.fit_transform(kept)
    first = np.array([each.causes[0] for each in known])
    chosen = SelectKBest(chi2, k=min(_MOST_FEATURES, matrix.shape[1])).fit(matrix > 0, first)
    matrix = normalize(chosen.transform(matrix))
    causes = [each for each in Cause if np.sum(first == each) >= _FEWEST_OF_CAUSE]
    planes = [_plane(matrix, known, cause, lambda each: each.causes) for cause in causes]
    planes += [_plane(matrix, known, action, lambda each: each.actions) for action in Action]
    weights = np.stack([plane for plane, _ in planes])
    return _Model(vectors, chosen, causes, weights, [bias for _, bias in planes])


def _plane(
    matrix: Any,
    known: Sequence[Example],
    label: str,
    labels: Callable[[Example], tuple[str, ...]],
) -> tuple[Any, float]:
    """Weights and bias of a label against all others."""
    is_first = np.array([labels(each)[0] == label for each in known])
    is_silent = np.array([label in labels(each)[1:] for each in known])
    machine = LinearSVC(C=_PENALTY, max_iter=5000, random_state=0)
    machine.fit(matrix[~is_silent], is_first[~is_silent])
    return machine.coef_[0], float(machine.intercept_[0])


def _arbiter(
    cases: Sequence[Case], counted: Sequence[_Features], known: Sequence[Example]
) -> dict[str, float]:
    causes: list[tuple[dict[str, float], bool]] = []
    actions: list[tuple[dict[str, float], bool]] = []
    rules_of = recorded()
    for case, scores in _unlearnt(cases, counted, known):
        rules = rules_of.get(case.name)
        if rules is None:
            continue
        for cause in candidates(rules, scores):
            if cause == case.causes[0] or cause not in case.causes:
                causes.append((of_cause(rules, scores, cause), cause in case.causes))
        right = rules.cause if rules.cause in case.causes else Cause(case.causes[0])
        for action in Action:
            if action == case.right_actions[0] or action not in case.right_actions:
                is_right = action in case.right_actions
                actions.append((of_action(rules, scores, right, action), is_right))
    return _weighed(causes, _PENALTY_OF_CAUSES) | _weighed(actions, _PENALTY_OF_ACTIONS)


def _unlearnt(
    cases: Sequence[Case], counted: Sequence[_Features], known: Sequence[Example]
) -> list[tuple[Case, Scores]]:
    """What each case reads like to a model that has not learnt from its set."""
    found = []
    sets = sorted({case.set_name for case in cases})
    for part in (frozenset(sets[first::_PARTS]) for first in range(_PARTS)):
        aside = [at for at, case in enumerate(cases) if case.set_name in part]
        left = sorted(set(range(len(known))) - set(aside))
        model = _model([counted[at] for at in left], [known[at] for at in left])
        scores = model.read([counted[at] for at in aside])
        found += [(cases[at], each) for at, each in zip(aside, scores, strict=True)]
    return found


def _weighed(rows: Sequence[tuple[dict[str, float], bool]], penalty: float) -> dict[str, float]:
    vectors = DictVectorizer()
    matrix = vectors.fit_transform([features for features, _ in rows])
    machine = LogisticRegression(C=penalty, max_iter=5000)
    machine.fit(matrix, [is_right for _, is_right in rows])
    named = zip(vectors.get_feature_names_out(), machine.coef_[0], strict=True)
    return {name: round(float(each), 3) for name, each in named if abs(each) >= _LEAST}


def main() -> int:
    cases, texts = cases_learnt_from(), known_texts()
    packed = trained(cases, texts)
    WEIGHTS.write_bytes(packed)
    print(f"{WEIGHTS.name}: {len(packed) / 1000:.0f} kB, from {len(cases) + len(texts)} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
