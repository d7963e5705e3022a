# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Train `mwatch.classifier` on the examples of `public.lessons`: `make classifier`.

Each label is learnt against all others, with a linear support vector machine; where a cause is
right but not the best one, the example says nothing about it.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_selection import SelectKBest, chi2
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from mwatch.classifier.classifier import STEPS, Weights, features, key_of
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from public.lessons import Example, digest, learnt_from

WEIGHTS = Path(__file__).parents[2] / "sidecar/mwatch/classifier/weights.bin"
_MOST_FEATURES = 30_000
_FEWEST_CASES = 3
"""In which a feature occurs."""
_FEWEST_OF_CAUSE = 5
_PENALTY = 3.0


def trained(known: Sequence[Example]) -> bytes:
    counted = [_features(each.text) for each in known]
    numbers: dict[str, int] = {}
    for each in counted:
        for feature in each:
            numbers[feature] = numbers.get(feature, 0) + 1
    kept = {feature for feature, number in numbers.items() if number >= _FEWEST_CASES}
    vectors = DictVectorizer(dtype=np.float32)
    matrix = vectors.fit_transform([dict.fromkeys(each & kept, 1) for each in counted])
    first = np.array([each.causes[0] for each in known])
    chosen = SelectKBest(chi2, k=min(_MOST_FEATURES, matrix.shape[1])).fit(matrix, first)
    names = vectors.get_feature_names_out()[chosen.get_support()]
    matrix = normalize(chosen.transform(matrix))
    causes = [each for each in Cause if np.sum(first == each) >= _FEWEST_OF_CAUSE]
    actions = list(Action)
    planes = [_plane(matrix, known, cause, lambda each: each.causes) for cause in causes]
    planes += [_plane(matrix, known, action, lambda each: each.actions) for action in actions]
    weights = np.stack([plane for plane, _ in planes])
    scales = np.abs(weights).max(axis=1)
    roots = np.sign(weights) * np.sqrt(np.abs(weights) / scales[:, None])
    steps = np.round(roots * STEPS).astype(np.int8).T
    keys = array("I", [key_of(name) for name in names])
    if sys.byteorder == "big":
        keys.byteswap()
    packed = Weights(
        cases=len(known),
        digest=digest(known),
        causes=causes,
        actions=actions,
        biases=[round(float(bias), 6) for _, bias in planes],
        scales=[round(float(scale), 6) for scale in scales],
        keys=keys.tobytes(),
        steps=np.ascontiguousarray(steps).tobytes(),
    )
    return zlib.compress(msgspec.msgpack.encode(packed), 9)


def _features(text: str) -> set[str]:
    return {feature for _, found in features(text.splitlines()) for feature in found}


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


def main() -> int:
    known = learnt_from()
    packed = trained(known)
    WEIGHTS.write_bytes(packed)
    print(f"{WEIGHTS.name}: {len(packed) / 1000:.0f} kB, learnt from {len(known)} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
