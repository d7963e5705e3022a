# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`final` in attempt.json: whether Kubernetes will start another attempt in this pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch_trainer.exits.explain import POLICY, is_last
from support.runs.wrapper_runs import attempt, environ, run


@pytest.mark.parametrize(
    ("policy", "returned", "is_final", "expected"),
    [
        ("Never", 200, False, True),
        ("Never", 0, True, True),
        ("OnFailure", 0, False, True),
        ("OnFailure", 1, True, False),
        ("Always", 0, True, False),
        (None, 1, True, True),
        (None, 200, False, False),
        ("Sometimes", 200, False, False),
    ],
)
def test_the_pods_policy_decides_and_without_one_our_own_table(
    policy: str | None, returned: int, is_final: bool, expected: bool
) -> None:
    assert is_last(returned, is_final, {} if policy is None else {POLICY: policy}) is expected


@pytest.mark.parametrize(("policy", "expected"), [("Never", True), ("OnFailure", False)])
@pytest.mark.parametrize("words", [["sh", "-c", "exit 7"], ["/no/such/command"]])
def test_the_wrapper_notes_it(
    tmp_path: Path, policy: str, expected: bool, words: list[str]
) -> None:
    run(tmp_path, *words, env=environ(**{POLICY: policy}))
    assert attempt(tmp_path)["final"] is expected
