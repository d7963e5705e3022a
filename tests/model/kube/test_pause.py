# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pause with an end, and one that somebody set by hand."""

from __future__ import annotations

import pytest

from mwatch.model.kube.job import KubeJob, Pause, pause_of, pause_text
from support.builders.kube import pytorch_job


def paused(text: str) -> KubeJob:
    return pytorch_job(annotations={"mwatch.dev/pause": text})


def test_a_pause_ends_by_itself() -> None:
    job = paused(pause_text(Pause(1000.0, "ann", "the switch")))
    assert pause_of(job, 999.0) == Pause(1000.0, "ann", "the switch")
    assert pause_of(job, 1000.0) is None


def test_one_without_an_end_holds_until_it_is_taken_away() -> None:
    assert pause_of(paused(pause_text(Pause(None, "ann", ""))), 1e12) == Pause(None, "ann", "")
    assert pause_of(pytorch_job(), 0.0) is None


@pytest.mark.parametrize("text", ["yes", "", "2h", "[1]", '{"until": "soon"}', '{"until": NaN}'])
def test_whatever_stands_there_pauses(text: str) -> None:
    found = pause_of(paused(text), 1e12)
    assert found is not None and found.until is None
