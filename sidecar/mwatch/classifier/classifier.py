# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Classify the cause of a log and the action to take, with a linear model over the words of a log.

`make classifier` trains it on the logs of `tests/public` and writes `weights.bin`. A feature is a
word, a part of one (`CamelCase`, `with_parts`) or two words in a row. Words in one of the last
lines are an additional feature, and so are words in the first line with an error. A feature counts
once, however often it occurs. Numbers and case are ignored, and of lines that differ only in
numbers only one is read. Progress lines and bars contribute only the course of their numbers
(`numbers.shapes`), with twice the weight. The score of a label is the sum of the weights of the
known features divided by the length of their vector. It is positive if the log resembles those of
the label, and the label with the highest score wins.
"""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import msgspec

from mwatch.classifier.numbers import shapes
from mwatch.model.cause import Cause
from mwatch.model.decision import Action

MOST_LINES = 400
_MOST_CHARACTERS = 600
"""Characters read of a line."""
TWICE = 2
"""Weight of the course of a number relative to a word."""
_LAST = 10
"""Number of last lines whose words are an additional feature."""
_HEXADECIMAL = re.compile(r"\b0x[0-9a-fA-F]+")
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[^\W\d]+")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ERROR = re.compile(r"error|exception", re.I)
_BAR = re.compile(
    r"\d{1,3}%\|[^\]\n]{0,400}\]|\d{1,12}/\d{1,12} {0,2}\[[^\]\n]{0,300}\]"
    r"|\{(?![^{}]*\b(?:nan|inf)\b)[^{}]*loss[^{}]*\}",
    re.I,
)
_STEP = re.compile(
    r"loss\w{0,20}[^\w\n]{0,12}\d|\b(?:iteration|step|iter)s?[^\w\n]{0,6}\d{1,12} ?/", re.I
)
TROUBLE = re.compile(
    r"error|errno|exception|traceback|fail|fatal|[:= ][-+]?(?:nan|inf)\b(?! iter)|overflow|warn"
    r"|time[d ]?out|\b[WE]\d{4} |restart worker|cannot|could not|unable to|denied|refused"
    r"|not (?:found|supported|available|initialized)|unsupported|deprecated|signal|SIGTERM|SIGKILL",
    re.I,
)
"""Words of a line that reports more than progress."""
STEPS = 127
_SIGNED = (byte if byte <= STEPS else byte - 256 for byte in range(256))
_WEIGHTS = tuple(step * abs(step) / STEPS**2 for step in _SIGNED)
"""The weight for each byte; a byte is the signed root of a weight, to resolve small weights."""


class Weights(msgspec.Struct):
    """The model as stored, in compressed MessagePack."""

    cases: int
    """Number of logs that the model was trained on."""
    digest: str
    """Digest of these logs."""
    causes: list[Cause]
    actions: list[Action]
    biases: list[float]
    """One for each label: the causes, then the actions."""
    scales: list[float]
    keys: bytes
    """A little-endian CRC-32 for each feature."""
    steps: bytes
    """A signed byte per label for each feature."""
    arbiter: dict[str, float]
    """The weights of `arbiter.Arbiter`."""


class Scores(NamedTuple):
    """Scores of a log. `by_line`: contribution of each line, by its index, to each cause."""

    causes: dict[Cause, float]
    actions: dict[Action, float]
    by_line: dict[int, dict[Cause, float]]

    def ranked(self, possible: Collection[Cause]) -> list[Cause]:
        """Return the causes of `possible` that the model knows, best first."""
        known = [cause for cause in self.causes if cause in possible]
        return sorted(known, key=self.causes.__getitem__, reverse=True)

    def line_for(self, cause: Cause, over: Cause) -> int:
        """Return the index of the line that most favours `cause` over the alternative `over`."""
        return max(self.by_line, key=lambda line: self._difference(line, cause, over))

    def _difference(self, line: int, cause: Cause, over: Cause) -> float:
        return self.by_line[line][cause] - self.by_line[line][over]


def features(lines: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the features of each line with new content, with the index of the line."""
    shown = [index for index, line in enumerate(lines) if line.strip()]
    last = set(shown[-_LAST:])
    seen: set[str] = set()
    has_error = False
    for index in shown[-MOST_LINES:]:
        text = _BAR.sub(" ", lines[index][:_MOST_CHARACTERS])
        if _is_step(text):
            continue
        shape = _NUMBER.sub("0", text)
        if shape in seen and index not in last:
            continue
        seen.add(shape)
        found = _of_line(text)
        is_first_error = not has_error and _ERROR.search(text) is not None
        has_error = has_error or is_first_error
        again = ["first:"] * is_first_error + ["last:"] * (index in last)
        yield index, found + [place + each for place in again for each in found]


def is_progress(line: str) -> bool:
    """Whether a line reports only progress."""
    line = line[:_MOST_CHARACTERS]
    rest = _BAR.sub(" ", line)
    return _is_step(rest) or (rest != line and not TROUBLE.search(rest))


def _is_step(text: str) -> bool:
    return _STEP.search(text) is not None and TROUBLE.search(text) is None


def _of_line(text: str) -> list[str]:
    words = _WORD.findall(_HEXADECIMAL.sub(" ", text))
    low = [word.lower() for word in words]
    parts = [_PART.findall(word) for word in words]
    found = [f"part:{part.lower()}" for each in parts if len(each) > 1 for part in each]
    return low + [f"{first} {second}" for first, second in pairwise(low)] + found


def key_of(feature: str) -> int:
    return zlib.crc32(feature.encode("utf-8", "replace"))


class Classifier:
    def __init__(self, packed: bytes) -> None:
        """`packed`: the content of `weights.bin`."""
        weights = msgspec.msgpack.decode(zlib.decompress(packed), type=Weights)
        self.cases, self.digest = weights.cases, weights.digest
        self._causes, self._actions = weights.causes, weights.actions
        self._biases, self._scales = weights.biases, weights.scales
        keys = array("I", weights.keys)
        if sys.byteorder == "big":
            keys.byteswap()
        self._rows = {key: row for row, key in enumerate(keys)}
        self._steps = weights.steps
        self.arbiter = weights.arbiter

    def read(self, lines: Sequence[str]) -> Scores | None:
        """Score the lines; None if no line has a word that the model knows."""
        width = len(self._scales)
        total = [0.0] * width
        by_line: dict[int, dict[Cause, float]] = {}
        known: set[int] = set()
        for index, found in features(lines):
            rows = self._known(found) - known
            known |= rows
            sums = self._sums(rows)
            scaled = (each * scale for each, scale in zip(sums, self._scales, strict=True))
            by_line[index] = dict(zip(self._causes, scaled, strict=False))
            total = [each + more for each, more in zip(total, sums, strict=True)]
        if not known:
            return None
        rows = self._known(shapes(lines))
        sums = self._sums(rows)
        total = [each + TWICE * more for each, more in zip(total, sums, strict=True)]
        root = sqrt(len(known) + TWICE**2 * len(rows))
        labels = zip(self._biases, self._scales, total, strict=True)
        scores = [bias + scale * value / root for bias, scale, value in labels]
        causes = dict(zip(self._causes, scores, strict=False))
        actions = dict(zip(self._actions, scores[len(causes) :], strict=True))
        return Scores(causes, actions, by_line)

    def _known(self, found: Iterable[str]) -> set[int]:
        return {self._rows.get(key_of(each), -1) for each in found} - {-1}

    def _sums(self, rows: Iterable[int]) -> list[float]:
        """Return the sum of the weights of these features, for each label."""
        width = len(self._scales)
        sums = [0.0] * width
        for row in rows:
            steps = self._steps[row * width : (row + 1) * width]
            sums = [each + _WEIGHTS[step] for each, step in zip(sums, steps, strict=True)]
        return sums
