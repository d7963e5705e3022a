# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The tool on a machine without a GPU: a real run of one rank, and how results are judged."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_faults.__main__ import FAULTS, judged, main, run


def body(**verdict: Any) -> dict[str, Any]:
    return {"verdict": verdict, "findings": [], "next_step": "x"}


def test_a_fabric_that_is_blamed_for_one_rank_is_a_problem() -> None:
    summary = "no progress; all ranks are equal: look at the fabric or the storage; stopped"
    found = judged("sigstop", body(cause="hang", summary=summary), None)
    assert found.problems == ("it blames the fabric or a collective of one rank",)


def test_cause_words_and_place_are_compared() -> None:
    assert len(judged("kernel", body(cause="healthy", summary="fine"), None).problems) == 3
    summary = "rank 0 waits for its GPU, whose SMs are busy and tensor cores idle"
    good = body(cause="hang", summary=summary, culprit={"place": "trainer.py:76 in fail"})
    assert judged("kernel", good, {"times": {"fault": 1.0, "detected": 4.0}}).seconds == 3.0
    assert not judged("kernel", good, None).problems


def test_without_a_gpu_it_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpu_faults.__main__.has_gpu", lambda: False)
    assert main([]) == 3
    assert "torch finds no GPU" in capsys.readouterr().out
    assert set(FAULTS) == {"sigstop", "sleep", "kernel", "assert", "oom", "nan"}


def test_a_watcher_that_does_not_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('a package is missing')"]
    monkeypatch.setattr("gpu_faults.__main__._mwatch", lambda *arguments: broken)
    found = run("sleep", tmp_path, "cpu", limit=60.0, at=5)
    assert found.problems == ("mwatch run did not start",)
    assert "a package is missing" in found.summary


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_single_rank_that_sleeps_in_its_step_is_found_there(tmp_path: Path) -> None:
    found = run("sleep", tmp_path, "cpu", limit=120.0, at=10)
    assert found.problems == ()
    assert (found.culprit["rank"], found.culprit["state"]) == (0, "stuck")
    assert found.next_step.startswith("read the code at the place that is named")
