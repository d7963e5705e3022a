# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The status area: what it says about speed, GPUs and checkpoints, and how it fits a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from msgspec import structs
from rich.console import Console
from rich.text import Text

from mwatch.cli.render.run_status import Status, area, sparkline, status_of
from support.builders.run import gone_bad
from support.builders.snapshot import GPU, busy_snapshot

STATUS = Status(
    attempt=2, phase="training", iteration=120, total=480, seconds_left=4000.0,
    speed=("0.500 s/step", "8,000 tokens/s", "33.0 TFLOP/s per GPU"), loss_name="lm loss",
    loss=2.5, curve=(4.0, 3.0, 2.5), gpus=("8 up", "use 97%"), saves=("100", "goodput 93%"),
    findings=(("rank 3 is silent", "bold red"),),
)  # fmt: skip


def drawn(status: Status | None, width: int, encoding: str = "utf-8", line: str = "") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    is_ascii = console.options.ascii_only
    events = [Text("12:00:00 attempt 2 starts"), Text("x" * 300)]
    console.print(
        area(
            status, title="mwatch run r (act)", page="http://127.0.0.1:9401/", events=events,
            line=line, width=width, is_ascii=is_ascii,
        )
    )  # fmt: skip
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [20, 40, 59, 60, 80, 200])
def test_it_fits_every_width_and_says_the_same(width: int) -> None:
    lines = drawn(STATUS, width, line="50%|####").splitlines()
    assert len(lines) == (11 if width < 60 else 12)
    assert all(len(each) <= width for each in lines)
    text = "\n".join(lines)
    assert ("╭" in text) == (width >= 60)
    if width >= 40:
        for each in (
            "120/480 · 25%",
            "0.500 s/step",
            "2.5000 █▃▁",
            "8 up",
            "http://127.0.0.1:9401/",
        ):
            assert each in text


def test_a_terminal_without_unicode_gets_plain_signs() -> None:
    text = drawn(STATUS, 80, encoding="ascii")
    assert "?" not in text
    assert "120/480, 25%, ETA 66 min 40 s" in text


def test_before_the_first_look_it_says_where_the_page_is() -> None:
    assert "starting" in drawn(None, 80)
    assert "http://127.0.0.1:9401/" in drawn(None, 80)


def test_a_curve_shows_its_ends_in_few_columns() -> None:
    assert sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert sparkline(range(1000), 4) == "▁▃▆█"
    assert sparkline([1.0, 1.0], 4) == "▁▁"
    assert sparkline([1.0], 4) == sparkline([], 4) == sparkline([1e308, -1e308], 4) == ""


def test_gpus_are_summed_up_and_the_odd_one_is_named() -> None:
    told = gone_bad()
    assessment = told.waits(1)
    idle = structs.replace(GPU, number=5, rank=5, utilization=0.1, temperature_celsius=40.0)
    lost = structs.replace(GPU, number=6, rank=6, is_up=False)
    other = structs.replace(GPU, number=7, rank=None, utilization=0.0)
    snapshot = replace(busy_snapshot(), gpus=(GPU, idle, lost, other))
    status = status_of(told.engine.job, assessment, snapshot)
    assert status.gpus == (
        "2 up", "lost: 6", "use 54% (GPU 5: 10%)", "61 °C", "60 of 130 GiB", "1,225 W",
    )  # fmt: skip
    assert status_of(told.engine.job, assessment, replace(snapshot, gpus=())).gpus == (
        "none found",
    )


def test_there_is_no_eta_while_training_is_broken() -> None:
    told = gone_bad()
    assessment = told.waits(1)
    status = status_of(told.engine.job, assessment, busy_snapshot())
    assert status.seconds_left is None
    healthy = status_of(told.engine.job, assessment._replace(findings=()), busy_snapshot())
    usual = told.engine.job.attempt.steps[-1].seconds
    assert usual and healthy.seconds_left == pytest.approx((1000 - 9) * usual)
