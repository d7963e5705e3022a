# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A saved log is as new as the times in it, not as the file: both sides, zones and other clocks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay.freshness import TailClock, age_of, tail_clock
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.run_report import RunReport
from support.builders.events import log
from support.runs.recorded import START, RunLog, moment

HOUR = 3600.0


def steps(seconds: float = 1.0) -> RunLog:
    return RunLog().start().steps(1, 150, seconds)


def saved(folder: Path, text: object, now: float, until: str | None = None) -> RunReport:
    """Judge a file that was written a second before `now`."""
    file = folder / "x.log"
    file.write_text(str(text))
    os.utime(file, (now - 1.0, now - 1.0))
    return replay(ReplayRequest([str(file)], [], until), now)


@pytest.fixture
def pacific() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/Los_Angeles"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("minutes", [10, 60, 90, 480, 4000])
def test_a_fresh_copy_of_an_old_log_is_hung_or_ended(tmp_path: Path, minutes: int) -> None:
    run = steps()
    report = saved(tmp_path, run, moment(run.at) + 60.0 * minutes)
    assert (report.verdict.cause, report.decision.action) == (Cause.HANG, Action.NONE)
    assert report.exit_code == 1
    assert "has hung since then, or it ended without a message" in report.verdict.summary
    assert "kubectl get pod" in report.verdict.summary
    assert "its clock is taken as UTC" in report.verdict.summary
    assert report.verdict.confidence <= 0.4
    assert report.attempts[-1].cause is Cause.HANG


def test_a_log_of_last_month_is_history_not_a_hang(tmp_path: Path) -> None:
    run = steps()
    report = saved(tmp_path, run, moment(run.at) + 30 * 86400.0)
    assert (report.verdict.cause, report.exit_code) == (Cause.UNKNOWN, 3)
    assert "its last line is 30 days old" in report.verdict.summary


def test_a_silence_that_the_rhythm_of_the_run_explains_is_healthy(tmp_path: Path) -> None:
    run = steps(seconds=300.0)
    report = saved(tmp_path, run, moment(run.at) + 400.0)
    assert (report.verdict.cause, report.exit_code) == (Cause.HEALTHY, 0)


def test_a_finished_run_stays_finished_however_old(tmp_path: Path) -> None:
    run = RunLog(total=150).start().steps(1, 150).done()
    assert saved(tmp_path, run, moment(run.at) + 5 * HOUR).verdict.cause is Cause.FINISHED


def test_until_now_means_now(tmp_path: Path) -> None:
    run = steps()
    report = saved(tmp_path, run, moment(run.at) + 1.5 * HOUR, until="now")
    assert report.verdict.cause is Cause.HANG
    assert "no progress for 5400 s" in report.verdict.summary


@pytest.mark.parametrize("hours", [1, 5.5, 8, 13])
def test_a_fresh_log_of_a_zone_ahead_of_us_is_healthy(tmp_path: Path, hours: float) -> None:
    run = steps()
    report = saved(tmp_path, run, moment(run.at) - hours * HOUR + 5.0)
    assert report.verdict.cause is Cause.HEALTHY
    assert f"UTC+{int(hours)}" in report.verdict.summary


def test_an_old_log_of_a_zone_ahead_of_us_is_hung(tmp_path: Path) -> None:
    run = steps()
    report = saved(tmp_path, run, moment(run.at) - 8 * HOUR + 20 * 60.0)
    assert report.verdict.cause is Cause.HANG
    assert "the last line is 20 min old" in report.verdict.summary


@pytest.mark.usefixtures("pacific")
def test_a_log_in_the_zone_of_this_machine_is_fresh(tmp_path: Path) -> None:
    run = steps()
    report = saved(tmp_path, run, moment(run.at) + 8 * HOUR + 5.0)
    assert report.verdict.cause is Cause.HEALTHY
    assert "local time of this machine" in report.verdict.summary


@pytest.mark.usefixtures("pacific")
def test_a_log_in_utc_is_fresh_on_a_machine_in_another_zone(tmp_path: Path) -> None:
    run = steps()
    assert saved(tmp_path, run, moment(run.at) + 5.0).verdict.cause is Cause.HEALTHY


def without_own_times(run: RunLog) -> list[str]:
    return [line[line.index("]") + 1 :] for line in run.lines]


def with_kubectl_times(run: RunLog, ahead: float, form: str = "{}Z {}") -> str:
    """Each line with the true time before it; `ahead` of the trainer's clock."""
    lines = []
    at = START
    for line in run.lines:
        if line.startswith(" ["):
            at = at.fromisoformat(line[2:21])
        true = at + timedelta(seconds=ahead)
        lines += [form.format(true.isoformat(timespec="milliseconds"), each)
                  for each in line.splitlines()]  # fmt: skip
    return log(*lines)


@pytest.mark.parametrize("form", ["{}Z {}", "{}Z stdout F {}", "[pod/gpt-0/main] {}Z {}"])
@pytest.mark.parametrize("hours", [0, 8, -9])
def test_times_with_a_zone_show_how_old_a_log_is(tmp_path: Path, form: str, hours: int) -> None:
    run = steps()
    text = with_kubectl_times(run, hours * HOUR, form)
    now = moment(run.at) + hours * HOUR
    fresh, old = (saved(tmp_path, text, now + age) for age in (5.0, 1.5 * HOUR))
    assert fresh.verdict.cause is Cause.HEALTHY
    assert (old.verdict.cause, old.exit_code) == (Cause.HANG, 1)
    assert "taken as" not in old.verdict.summary


def test_lines_that_show_no_progress_prove_a_silence(tmp_path: Path) -> None:
    run = steps()
    for _ in range(30):
        run.wait(60.0).say(f"{run.stamp[:19]} INFO sampler: 3 clients are connected")
    now = moment(run.at) + 30 * 86400.0
    report = saved(tmp_path, run, now)
    assert (report.verdict.cause, report.exit_code) == (Cause.HANG, 1)
    assert "no progress for 18" in report.verdict.summary


def test_lines_that_go_on_for_a_few_seconds_prove_nothing(tmp_path: Path) -> None:
    run = steps()
    run.wait(2.0).say(f"{run.stamp[:19]} INFO sampler: 3 clients are connected")
    assert saved(tmp_path, run, moment(run.at) + 30 * 86400.0).verdict.cause is Cause.UNKNOWN


def test_a_log_without_a_clock_cannot_be_known_to_be_new(tmp_path: Path) -> None:
    text = log(*without_own_times(RunLog().steps(1, 150)))
    report = saved(tmp_path, text, moment(0.0))
    assert (report.verdict.cause, report.exit_code) == (Cause.UNKNOWN, 3)
    assert "it prints no times" in report.verdict.summary


@pytest.mark.parametrize("form", ["{}Z {}", "{}Z stdout F {}"])
def test_the_clock_of_the_container_runtime_is_enough(tmp_path: Path, form: str) -> None:
    run = RunLog().steps(1, 150)
    times = [(START + timedelta(seconds=1.0 + each)).isoformat() for each in range(150)]
    lines = zip(times, without_own_times(run), strict=True)
    text = log(*(form.format(*each) for each in lines))
    fresh, old = (saved(tmp_path, text, moment(150.0 + age)) for age in (5.0, 1.5 * HOUR))
    assert (fresh.verdict.cause, old.verdict.cause) == (Cause.HEALTHY, Cause.HANG)


def test_a_date_that_a_line_is_about_is_not_its_time() -> None:
    tail = b"2026-01-07 10:00:00 step\n certificate is valid until 2031-01-07 10:00:00\n"
    assert tail_clock(tail, moment(60.0)).last == moment(0.0)


def test_writers_in_two_zones_prove_nothing() -> None:
    lines = ["2026-01-07 10:00:0{0} a", "2026-01-07 18:00:0{0} b"]
    tail = log(*(line.format(second) for second in range(5) for line in lines)).encode()
    assert tail_clock(tail, moment(9 * HOUR)) == TailClock(None, None)


def test_a_clock_that_no_zone_explains_has_no_age() -> None:
    clock = TailClock(moment(40 * HOUR), None)
    assert age_of(clock, moment(0.0), local_offset=0.0, fresh=60.0) is None


def test_a_stamp_without_a_year_has_that_of_the_collector() -> None:
    tail = (
        b"2025-10-04T15:18:52.420Z INFO:root:DONE ---- rank 2\n"
        b"2025-10-04T15:18:53.602Z [rank0]:[W1004 15:18:53.377201846 ProcessGroupNCCL.cpp:1479] x\n"
    )
    year_later = datetime(2026, 11, 17, tzinfo=UTC).timestamp()
    last = tail_clock(tail, year_later).last
    assert last is not None and year_later - last > 300 * 24 * HOUR
