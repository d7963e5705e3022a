# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The rule files as values, and which metrics and labels their expressions name.

An expression is read by its words, not by a parser of PromQL: strings are set aside, a selector is
a name with braces behind it. promtool checks the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from support.repository.source_rules import ROOT

FOLDER = ROOT / "alerts"
_STRING = re.compile(r'"[^"]*"')
_NAME = re.compile(r"\bmwatch[_:][a-z0-9_:]+")
_SELECTOR = re.compile(r"\b(mwatch[_:][a-z0-9_:]+)\s*\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)")


class Matcher(NamedTuple):
    metric: str
    label: str
    value: str


class Rule(NamedTuple):
    file: str
    name: str
    """Of the alert, or of the series that is recorded."""
    is_alert: bool
    expr: str
    body: dict[str, Any]

    @property
    def metrics(self) -> set[str]:
        return set(_NAME.findall(_STRING.sub('""', self.expr)))

    @property
    def matchers(self) -> Iterator[Matcher]:
        for metric, inside in _SELECTOR.findall(self.expr):
            for label, value in _MATCHER.findall(inside):
                yield Matcher(metric, label, value)

    @property
    def grouped_by(self) -> set[str]:
        lists = _GROUPING.findall(_STRING.sub('""', self.expr))
        return {label.strip() for text in lists for label in text.split(",") if label.strip()}


@cache
def groups_of(path: Path) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loaded = yaml.load(path.read_text("utf-8"), loader)
    groups: list[dict[str, Any]] = loaded["groups"]
    return groups


def rule(file: str, body: dict[str, Any]) -> Rule:
    name = body.get("alert") or body["record"]
    return Rule(file, name, "alert" in body, str(body["expr"]), body)


def read_rules(folder: Path = FOLDER) -> list[Rule]:
    return [
        rule(path.name, body)
        for path in sorted(folder.glob("*.rules.yaml"))
        for group in groups_of(path)
        for body in group["rules"]
    ]


def alerts() -> list[Rule]:
    return [each for each in read_rules() if each.is_alert]
