# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is said about whole recorded runs: verdict, decision, attempts and what is unknown."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.timeline import Rollback, Timeline
from mwatch.replay import recording
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.replay.replay import moment as read_moment
from mwatch.report.run_report import RunReport
from mwatch.runtime.ahead import run_ahead
from mwatch.sources.checkpoint_dir import to_text
from support.builders.checkpoint import torch_dist
from support.builders.events import log, megatron_line
from support.runs.recorded import RunLog, moment

LATER = moment(30 * 86400.0)
BAD = {"grad norm": "nan"}


def put(folder: Path, name: str, text: object) -> Path:
    file = folder / name
    file.write_text(str(text))
    return file


def judged(
    *names: Path, now: float = LATER, until: str | None = None, checkpoints: tuple[Path, ...] = ()
) -> RunReport:
    request = ReplayRequest(
        [str(name) for name in names], [str(each) for each in checkpoints], until
    )
    return replay(request, now)


def nan_run() -> RunLog:
    """NaN from 251 on, saved at 100, 200 and 300, run to its end."""
    run = RunLog(total=400).start()
    run.steps(1, 100).save(100).steps(101, 200).save(200).steps(201, 250)
    run.steps(251, 300, loss="", change=BAD).save(300).steps(301, 400, loss="", change=BAD)
    return run.done()


def test_a_nan_that_ran_to_its_end_goes_back_before_it(tmp_path: Path) -> None:
    report = judged(put(tmp_path, "a.log", nan_run()))
    assert (report.verdict.cause, report.verdict.since_iteration) == (Cause.NAN, 251)
    assert (report.decision.action, report.decision.resume_from) == (Action.RESTART, 200)
    assert report.acted_at is not None
    assert report.acted_at < moment(nan_run().at)
    assert report.exit_code == 1


def test_a_log_that_another_process_reads_is_judged_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(tmp_path, "a.log", f"{nan_run()}{log('Traceback (most recent call last):')}")
    here = judged(file)
    calls: list[Iterable[object]] = []

    def elsewhere(items: Iterable[object]) -> Iterator[object]:
        calls.append(items)
        return run_ahead(items)

    monkeypatch.setattr(recording, "_LARGE", 0)
    monkeypatch.setattr(recording, "run_ahead", elsewhere)
    assert judged(file) == here
    assert len(calls) == 1


def test_the_folder_knows_better_than_the_log_what_can_be_loaded(tmp_path: Path) -> None:
    save = tmp_path / "ckpt"
    torch_dist(save, 100)
    (save / "iter_0000200").mkdir()
    torch_dist(save, 300)
    put(tmp_path, "a.log", nan_run())
    report = judged(tmp_path)
    assert (report.verdict.cause, report.decision.resume_from) == (Cause.NAN, 100)
    assert judged(tmp_path / "a.log", checkpoints=(save,)).decision.resume_from == 100


def test_a_checkpoint_of_an_abandoned_line_is_not_chosen(tmp_path: Path) -> None:
    """The timeline beside the checkpoints says that 200 was rolled back behind."""
    save = tmp_path / "ckpt"
    for iteration in (100, 200):
        folder = torch_dist(save, iteration)
        for file in folder.iterdir():
            os.utime(file, (moment(-500.0), moment(-500.0)))
    run = RunLog(total=900).start(load=100).steps(101, 150).killed()
    file = put(tmp_path, "a.log", run)
    os.utime(file, (moment(run.at), moment(run.at)))
    assert judged(tmp_path).decision.resume_from == 200
    known = Timeline()
    known.roll_back(Rollback(moment(-100.0), 100, 180, "nan"))
    (save / ".mwatch").mkdir()
    (save / ".mwatch" / "timeline.json").write_text(to_text(known))
    assert judged(tmp_path).decision.resume_from == 100


def test_the_last_attempt_is_the_one_that_is_judged(tmp_path: Path) -> None:
    run = RunLog(total=300).start().steps(1, 100).save(100).steps(101, 150).killed()
    run.wait(30.0).start(load=100).steps(101, 300).save(300).done()
    report = judged(put(tmp_path, "a.log", run))
    assert (report.verdict.cause, report.decision.action) == (Cause.FINISHED, Action.NONE)
    first, second = report.attempts
    assert (first.cause, first.last_iteration, first.resumed_from) == (Cause.KILLED, 150, None)
    assert (second.cause, second.first_iteration, second.resumed_from) == (Cause.FINISHED, 101, 100)
    assert first.decision is not None
    assert first.decision.resume_from == 100
    assert report.exit_code == 0


def test_attempts_in_files_of_their_own_are_one_run(tmp_path: Path) -> None:
    first = RunLog(total=300).start().steps(1, 100).save(100).steps(101, 150).killed()
    second = RunLog(total=300, at=first.at + 60).start(load=100).steps(101, 300).save(300).done()
    put(tmp_path, "pod-b.log", first)
    put(tmp_path, "pod-a.log", second)
    report = judged(tmp_path)
    assert [each.cause for each in report.attempts] == [Cause.KILLED, Cause.FINISHED]
    assert [each.resumed_from for each in report.attempts] == [None, 100]


def test_a_rotated_log_is_one_attempt(tmp_path: Path) -> None:
    run = RunLog(total=300).start().steps(1, 300).done()
    lines = str(run).splitlines(keepends=True)
    put(tmp_path, "a.log.2", "".join(lines[:90]))
    put(tmp_path, "a.log.1", "".join(lines[90:200]))
    put(tmp_path, "a.log", "".join(lines[200:]))
    report = judged(tmp_path)
    assert (report.verdict.cause, len(report.attempts)) == (Cause.FINISHED, 1)


def test_pods_are_joined_whichever_is_named_first(tmp_path: Path) -> None:
    run = RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed()
    lines = str(run).splitlines(keepends=True)
    steps = [line for line in lines if "] iteration " in line]
    rest = [line for line in lines if line not in steps]
    zero, last = put(tmp_path, "zero.log", "".join(rest)), put(tmp_path, "last.log", "".join(steps))
    for names in ((zero, last), (last, zero)):
        report = judged(*names)
        assert (report.verdict.cause, report.verdict.since_iteration) == (Cause.KILLED, 151)
        assert report.decision.resume_from == 100
        assert len(report.attempts) == 1


def test_a_log_that_breaks_off_is_unknown_not_healthy(tmp_path: Path) -> None:
    report = judged(put(tmp_path, "a.log", RunLog().start().steps(1, 150)))
    assert (report.verdict.cause, report.decision.action) == (Cause.UNKNOWN, Action.NONE)
    assert "after iteration 150" in report.verdict.summary
    assert report.exit_code == 3


def test_a_log_that_is_being_written_is_healthy(tmp_path: Path) -> None:
    run = RunLog().start().steps(1, 150)
    file = put(tmp_path, "a.log", run)
    os.utime(file, (moment(run.at), moment(run.at)))
    report = judged(file, now=moment(run.at) + 5.0)
    assert (report.verdict.cause, report.exit_code) == (Cause.HEALTHY, 0)
    assert report.verdict.summary.endswith(
        "(training, iteration 150); the last line is 5 s old, so the run is taken as still up "
        "(its clock is taken as UTC)"
    )


def test_until_before_the_end_of_the_log_is_an_input_error(tmp_path: Path) -> None:
    file = put(tmp_path, "a.log", RunLog().start().steps(1, 150))
    with pytest.raises(InputError, match="the log goes on until 2026-01-07T"):
        judged(file, until="2026-01-07T08:00:00")


def test_until_makes_a_silence_a_hang(tmp_path: Path) -> None:
    run = RunLog().start().steps(1, 150)
    file = put(tmp_path, "a.log", run)
    report = judged(file, until="2026-01-07T11:00:00")
    assert (report.verdict.cause, report.verdict.since_iteration) == (Cause.HANG, 151)
    assert report.exit_code == 1


def test_until_now_is_read_by_the_clock_of_the_log(tmp_path: Path) -> None:
    """The trainer's zone was seven hours behind; the file was written when its last line was."""
    run = RunLog().start().steps(1, 150)
    file = put(tmp_path, "a.log", run)
    written = moment(run.at) + 7 * 3600.0
    os.utime(file, (written, written))
    report = judged(file, now=written + 3600.0, until="now")
    assert report.verdict.cause is Cause.HANG
    assert report.verdict.since_time == pytest.approx(moment(run.at))
    assert "no progress for 3600 s" in report.verdict.summary


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", ""])
def test_a_time_that_is_none_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="not a time"):
        read_moment(text, 0.0)


def test_a_log_without_times_is_shown_in_seconds(tmp_path: Path) -> None:
    lines = (megatron_line(number, 100, stamp=None) for number in range(1, 101))
    report = judged(put(tmp_path, "a.log", log(*lines)))
    assert report.clock.is_relative
    record = report.to_json()
    assert record["recording"]["clock"] == "relative"
    assert 0.0 <= record["attempts"][0]["started"] < 1.0


def test_until_says_nothing_about_a_log_without_times(tmp_path: Path) -> None:
    lines = str(RunLog().steps(1, 150)).splitlines()
    unstamped = log(*(line[line.index("]") + 1 :] for line in lines))
    report = judged(put(tmp_path, "a.log", unstamped), until="now")
    assert report.verdict.cause is Cause.UNKNOWN
    assert report.notes == ("the log prints no times, so --until does not apply",)


def test_of_a_text_that_is_no_log_nothing_is_known(tmp_path: Path) -> None:
    report = judged(put(tmp_path, "a.log", "hello\nworld\n"))
    assert (report.verdict.cause, report.exit_code) == (Cause.UNKNOWN, 3)
    assert report.verdict.summary == "no line of a trainer was found in the file"


def test_an_empty_folder_is_blind_and_says_why(tmp_path: Path) -> None:
    report = judged(tmp_path)
    assert (report.verdict.cause, report.exit_code) == (Cause.BLIND, 3)
    assert "is empty" in report.verdict.summary


def test_a_named_file_that_cannot_be_read_is_an_input_error(tmp_path: Path) -> None:
    good = put(tmp_path, "a.log", RunLog().start())
    binary = tmp_path / "b.log"
    binary.write_bytes(b"\x7fELF" + bytes(range(32)) * 9)
    for bad in (tmp_path / "no.log", binary):
        with pytest.raises(InputError, match=bad.name):
            judged(good, bad)
    with pytest.raises(InputError, match="no such folder"):
        judged(good, checkpoints=(tmp_path / "nowhere",))


def test_goodput_adds_up_to_the_time_of_the_run(tmp_path: Path) -> None:
    run = RunLog(total=300).start().steps(1, 100).save(100).steps(101, 300).save(300).done()
    report = judged(put(tmp_path, "a.log", run))
    spent = report.to_json()["goodput"]
    assert sum(spent["seconds"].values()) == pytest.approx(spent["wall_seconds"], abs=0.01)
    assert spent["wall_seconds"] == pytest.approx(run.at - 5.0, abs=0.1)  # its first stamp
    assert spent["seconds"]["saving"] == pytest.approx(10.0, abs=0.5)
    assert spent["ratio"] > 0.8
    assert spent["gpus"] == 8


def test_pods_in_another_zone_are_brought_together(tmp_path: Path) -> None:
    run = RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed()
    ahead = RunLog(total=400, at=2 * 3600.0).start().steps(1, 100).save(100).steps(101, 150)
    steps = [line for line in str(run).splitlines() if "] iteration " in line]
    rest = [line for line in str(ahead.killed()).splitlines() if "] iteration " not in line]
    put(tmp_path, "last.log", log(*steps))
    put(tmp_path, "zero.log", log(*rest))
    report = judged(tmp_path)
    assert (report.verdict.cause, report.decision.resume_from) == (Cause.KILLED, 100)
    assert len(report.attempts) == 1
    assert report.wall_seconds == pytest.approx(run.at, abs=10.0)


def test_a_warning_does_not_hide_that_the_log_breaks_off(tmp_path: Path) -> None:
    run = RunLog().start().steps(1, 150, loss=" lm loss: 2.000000E+00 |")
    report = judged(put(tmp_path, "a.log", run))
    assert (report.verdict.cause, report.exit_code) == (Cause.LOSS_STUCK, 1)
    assert any("breaks off after iteration 150" in note for note in report.notes)


def test_goodput_that_rests_on_a_guess_says_so(tmp_path: Path) -> None:
    run = RunLog(interval=100, total=9000).start().steps(1, 100).killed()
    told = judged(put(tmp_path, "a.log", run)).notes
    assert [note for note in told if "attributed by estimate" in note]
    run = RunLog(interval=100, total=9000).start().steps(1, 1000).killed()
    told = judged(put(tmp_path, "b.log", run)).notes
    assert not [note for note in told if "attributed by estimate" in note]


STOP = (
    "W0107 {time} 2540 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal,"
    " shutting down workers"
)
LIMIT = "slurmstepd: error: *** JOB 4711 ON node7 CANCELLED AT {date}T{time} DUE TO TIME LIMIT ***"


def ended(run: RunLog, form: str) -> RunLog:
    date, time = run.stamp.split()
    return run.killed() if form == "SIGKILL" else run.say(form.format(date=date, time=time[:8]))


@pytest.mark.parametrize("form", ["SIGKILL", STOP, LIMIT])
def test_a_run_that_stood_still_before_it_was_killed_hung(tmp_path: Path, form: str) -> None:
    run = ended(RunLog().start().steps(1, 150).wait(50.0), form)
    report = judged(put(tmp_path, "a.log", run))
    assert (report.verdict.cause, report.verdict.since_iteration) == (Cause.HANG, 151)
    assert report.verdict.summary.startswith("no progress for 50 s after iteration 150")
    assert report.verdict.culprit is None
    assert report.decision.action is Action.RESTART


@pytest.mark.parametrize("seconds", [1.0, 20.0])
@pytest.mark.parametrize("form", ["SIGKILL", STOP])
def test_a_run_that_was_killed_between_two_lines_is_killed(
    tmp_path: Path, form: str, seconds: float
) -> None:
    run = ended(RunLog().start().steps(1, 150, seconds).wait(1.2 * seconds), form)
    assert judged(put(tmp_path, "a.log", run)).verdict.cause is Cause.KILLED


def test_a_run_that_was_killed_while_saving_did_not_stand_still(tmp_path: Path) -> None:
    run = RunLog().start().steps(1, 100)
    run.say(f"[{run.stamp}] saving checkpoint at iteration     100 to /ck in torch_dist format")
    report = judged(put(tmp_path, "a.log", ended(run.wait(50.0), STOP)))
    assert report.verdict.cause is Cause.KILLED
