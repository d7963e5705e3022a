# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the classifier adds to the verdict on a saved log, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.cli.render.report import render_diagnosis
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.html.page import render as render_report
from mwatch.report.run_report import RunReport
from public.judge import Case, read_cases

NOW = 1_800_000_000.0
CASES = {case.name: case for case in read_cases()}
LOST_PEER = (
    "[rank1]: RuntimeError: [/opt/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] "
    "Read error [10.0.0.1]:2284: Connection reset by peer"
)
LIKE = "reads like"
STEP = "step {}/100 loss 2.{} lr 0.001"


def read(folder: Path, text: str, until: str | None = None) -> RunReport:
    file = folder / "train.log"
    file.write_text(text)
    return replay(ReplayRequest([str(file)], until=until), NOW)


def case(name: str) -> Case:
    """One that the classifier has not learnt from: see `public.lessons.HELD_OUT`."""
    return CASES[name]


def test_a_cause_that_no_rule_finds_is_named_with_the_line_that_speaks_for_it(
    tmp_path: Path,
) -> None:
    report = read(tmp_path, case("felicia-openrlhf-engines-idle-silence").text)
    assert report.verdict.cause is Cause.HANG
    assert report.decision.action in (Action.RESTART, Action.STOP)
    assert report.decision.is_advice
    lead = report.decision.finding
    assert lead is not None and lead.is_guess
    assert lead.evidence[0].text in case("felicia-openrlhf-engines-idle-silence").text
    assert "resembles others with this cause" in report.verdict.summary


def test_what_the_second_reading_finds_is_an_incident(tmp_path: Path) -> None:
    report = read(tmp_path, f"{STEP.format(1, 9)}\n{case('felicia-driver-xid-149-netir').text}")
    assert report.verdict.cause is Cause.HARDWARE
    assert [each.cause for each in report.incidents] == [Cause.HARDWARE]
    assert "nothing went wrong" not in render_report(report)


def test_a_cause_that_only_words_show_gives_way_to_a_better_one(tmp_path: Path) -> None:
    report = read(tmp_path, case("felicia-driver-xid-149-netir").text)
    assert report.verdict.cause is Cause.HARDWARE
    assert report.decision.action in (Action.STOP, Action.RESTART)
    assert report.verdict.confidence is not None and report.verdict.confidence <= 0.9


def test_warnings_that_steps_follow_are_no_fault(tmp_path: Path) -> None:
    report = read(tmp_path, case("caltha-index-maps-built-then-train").text)
    assert (report.verdict.cause, report.decision.action) == (Cause.HEALTHY, Action.NONE)
    assert "breaks off" in report.verdict.summary  # it does not hide what it cannot know


@pytest.mark.parametrize("steps", [0, 3])
def test_a_fault_that_steps_follow_is_none(tmp_path: Path, steps: int) -> None:
    start = [f"{word} is ready" for word in ("model", "loader", "optimizer", "mesh", "store")]
    lines = [*start, LOST_PEER, *(STEP.format(number, 9 - number) for number in range(steps))]
    report = read(tmp_path, "\n".join(lines) + "\n")
    assert (report.verdict.cause in (Cause.FABRIC, Cause.CRASH)) is (steps == 0)
    assert (report.decision.action is Action.NONE) is (steps > 0)


def test_steps_without_any_trouble_may_be_those_of_a_run_that_stands_still(
    tmp_path: Path,
) -> None:
    report = read(tmp_path, "".join(f"{STEP.format(n, 9 - n)}\n" for n in range(1, 9)))
    assert report.verdict.cause is Cause.UNKNOWN


def test_a_run_that_is_up_is_not_read_a_second_time(tmp_path: Path) -> None:
    text = case("caltha-index-maps-built-then-train").text
    shown = (read(tmp_path, text).verdict, read(tmp_path, text, until="now").verdict)
    assert [LIKE in each.summary for each in shown] == [True, False]


def test_what_a_detector_proved_stands(tmp_path: Path) -> None:
    """An image without a shell reads like an error of the code, but the way it ended is known."""
    report = read(tmp_path, case("erica-pyxis-switchroot-no-bash").text)
    assert report.verdict.cause is Cause.IMAGE
    assert LIKE not in report.verdict.summary


def test_a_few_lines_are_for_the_rules(tmp_path: Path) -> None:
    assert read(tmp_path, f"{LOST_PEER}\n").verdict.cause is Cause.FABRIC
    few = case("felicia-driver-xid-149-netir").text.splitlines()[-7:]
    assert LIKE not in read(tmp_path, "\n".join(few)).verdict.summary


def test_numbers_are_for_detectors(tmp_path: Path) -> None:
    """Losses that rise are a spike, whatever the words of the log are like."""
    rising = "".join(f"step {n}/100 loss {2.0 + max(0, n - 12) * 1.5:.2f}\n" for n in range(1, 20))
    report = read(tmp_path, f"WARNING: could not find index map files\n{rising}")
    assert report.verdict.cause is not Cause.HEALTHY


def test_a_failure_that_comes_again_is_not_advised_to_be_restarted(tmp_path: Path) -> None:
    report = read(tmp_path, case("drosera-torchrun-summary-without-traceback").text)
    assert (report.verdict.cause, report.decision.action) == (Cause.CRASH, Action.STOP)
    assert report.decision.is_advice and report.acted_at is None
    assert "come again after a restart" in (report.decision.proposal or "")
    own = report.attempts[-1].decision  # what it would do to a run that it watches
    assert own is not None and own.action is Action.RESTART
    shown = "".join(text for line in render_diagnosis(report) for text, _ in line)
    assert "advises: stop the job; mwatch itself would restart" in shown


def test_a_run_that_worked_before_it_began_again_is_advised_to_be_restarted(tmp_path: Path) -> None:
    step = " iteration {:8d}/ 100 | elapsed time per iteration (ms): 900.0 | lm loss: {}.0E+00 |"
    worked = [step.format(n, 9 - n) for n in range(1, 6)]
    again = "[INFO] [default] Worker group FAILED. 2/3 attempts left; will restart worker group"
    failed = case("drosera-torchrun-summary-without-traceback").text
    report = read(tmp_path, "\n".join((*worked, again, failed)))
    assert report.decision.action is Action.RESTART


@pytest.mark.parametrize("until", [None, "now"])
def test_a_restart_from_a_known_checkpoint_stands(tmp_path: Path, until: str | None) -> None:
    """As does every decision about a run that is still up."""
    saved = "successfully saved checkpoint from iteration      10 to /ckpt"
    text = case("drosera-torchrun-summary-without-traceback").text
    report = read(tmp_path, f"{saved}\n{text}" if until is None else text, until)
    assert report.decision.action is Action.RESTART


def test_a_cause_that_prevails_names_what_the_rules_alone_would_say(tmp_path: Path) -> None:
    report = read(tmp_path, case("felicia-driver-xid-149-netir").text)
    assert "(the rules alone: " in report.verdict.summary
    lead = report.decision.finding
    assert lead is not None and len(lead.evidence) > 1  # that of the rules stands below


def test_a_log_without_a_known_step_is_read_by_its_words(tmp_path: Path) -> None:
    """DeepSpeed's lines of a loss scale that finds its level are no steps of a trainer."""
    report = read(tmp_path, case("hosta-dschat-overflow-warmup").text)
    assert report.verdict.cause is not Cause.BLIND
    assert report.decision.action is Action.NONE


def test_tracebacks_of_what_tidies_up_are_not_read(tmp_path: Path) -> None:
    frame = '  File "/usr/lib/python3.9/multiprocessing/util.py", line 300, in {}'
    raised = "Traceback (most recent call last):\n{}\n    finalizer()\nOSError: [Errno 39] {}"
    epochs = [f"epoch {number} done, train loss 0.0{number}" for number in range(9, 2, -1)]

    def judged(function: str) -> Cause:
        error = raised.format(frame.format(function), "Directory not empty: 'pymp-2x'")
        return read(tmp_path, "\n".join([*epochs, error, ""])).verdict.cause

    assert judged("_run_finalizers") in (Cause.UNKNOWN, Cause.HEALTHY)
    assert judged("save") not in (Cause.UNKNOWN, Cause.HEALTHY)


def test_a_run_that_reports_its_end_does_not_stand_still(tmp_path: Path) -> None:
    report = read(tmp_path, case("felicia-maxtext-already-at-last-step").text)
    assert report.verdict.cause is not Cause.HANG
    assert report.decision.action is Action.NONE
