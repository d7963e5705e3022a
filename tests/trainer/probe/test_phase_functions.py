# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The functions of the bundled trainer in the probe's table exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mwatch_gpt
from mwatch_trainer.probe import stack

PACKAGE = Path(mwatch_gpt.__file__).parent
FUNCTIONS = [
    (function, end.removeprefix("mwatch_gpt/"))
    for function, rules in stack._FUNCTIONS.items()
    for end, _ in rules
    if end.startswith("mwatch_gpt/") and end.endswith(".py")
]


@pytest.mark.parametrize(("function", "file"), FUNCTIONS)
def test_a_function_of_the_small_trainer_is_in_the_named_file(function: str, file: str) -> None:
    tree = ast.parse((PACKAGE / file).read_text("utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert function in defined
