# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what a command printed with `--json`, and holds it against `docs/json.schema.json`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FILE = Path(__file__).resolve().parents[3] / "docs" / "json.schema.json"


@cache
def schemas() -> dict[str, tuple[Draft202012Validator, frozenset[str]]]:
    """By kind: what checks it, and the keys that it names."""
    whole = json.loads(FILE.read_text("utf-8"))
    found = {}
    for reference in whole["oneOf"]:
        shape = whole["$defs"][reference["$ref"].rpartition("/")[2]]
        (kind,) = shape["properties"]["kind"]["enum"]
        one = Draft202012Validator({**reference, "$defs": whole["$defs"]})
        found[kind] = (one, frozenset(shape["properties"]))
    return found


def read_json(text: str | bytes, kind: str) -> Any:
    """Return the object; it is of this kind, valid, and has no key that the schema lacks."""
    found = json.loads(text)
    assert found["kind"] == kind, found["kind"]
    checker, keys = schemas()[kind]
    problems = [f"{each.json_path}: {each.message[:300]}" for each in checker.iter_errors(found)]
    assert not problems, problems
    if kind not in ("change", "event"):  # each command and event adds keys of its own
        assert found.keys() <= keys
    return found
