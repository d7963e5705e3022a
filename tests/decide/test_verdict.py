# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fields of the verdict."""

from __future__ import annotations

from mwatch.decide.verdict import verdict
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, CulpritState, Finding, Severity, Verdict
from mwatch.model.job import Job
from support.builders.decide import decided, died, finding, running
from support.builders.job import fault


def judged(built: Job, *findings: Finding) -> Verdict:
    return verdict(built, findings, decided(built, *findings))


def test_the_finding_that_leads_is_the_verdict() -> None:
    who = Culprit(3, CulpritState.SILENT)
    lead = finding(Cause.HANG, since_iteration=101, confidence=0.7, culprit=who)
    output = judged(running(silent=400), lead)
    assert output == Verdict(Cause.HANG, lead.summary, 101, lead.since_time, who, 0.7)


def test_where_it_names_nobody_another_critical_one_may() -> None:
    who = Culprit(3, CulpritState.SILENT)
    maybe = finding(Cause.SLOW, severity=Severity.WARNING, culprit=Culprit(5))
    output = judged(died(), finding(Cause.OOM), maybe, finding(Cause.HANG, culprit=who))
    assert (output.cause, output.culprit) == (Cause.OOM, who)
    assert judged(died(), finding(Cause.OOM), maybe).culprit is None


def test_a_healthy_job_is_healthy_for_sure() -> None:
    output = judged(running())
    assert (output.cause, output.confidence) == (Cause.HEALTHY, 1.0)
    assert output.summary == "nothing is wrong (training, iteration 100)"


def test_what_only_informs_is_stated_beside_a_good_verdict() -> None:
    odd = finding(Cause.NAN, severity=Severity.INFO, summary="The validation loss is NaN.")
    output = judged(running(), odd)
    assert output.cause is Cause.HEALTHY
    assert output.summary.endswith("(training, iteration 100). The validation loss is NaN")


def test_a_job_that_is_done_is_finished_whatever_came_after() -> None:
    output = judged(died(is_done=True), finding(Cause.CRASH))
    assert output.cause is Cause.FINISHED
    assert output.summary.startswith("training is done, iteration 100")


def test_of_a_job_that_nobody_has_seen_nothing_is_sure() -> None:
    built = running()
    built.has_started = False
    built.attempt.iteration = None
    assert judged(built) == Verdict(Cause.UNKNOWN, "no data yet", confidence=0.0)


def test_a_rerun_is_reported_as_what_megatron_stumbled_over() -> None:
    nan = "Unexpected result nan on rank 0 at iteration #13 invocation #1 (message='found NaN')"
    odd = "Unexpected result 97.1 on rank 0 at iteration #13 invocation #1 (message='Spiky loss')"
    for text, cause in ((nan, Cause.NAN), (odd, Cause.HARDWARE)):
        built = died(faults=[fault("rerun-unexpected-result", text=text)])
        assert judged(built, finding(Cause.RERUN)).cause is cause


def test_a_rerun_of_which_nothing_is_printed_is_no_proof_against_the_hardware() -> None:
    assert judged(died(), finding(Cause.RERUN)).cause is Cause.RERUN


def test_the_attempt_that_checks_a_result_does_not_print_it_again() -> None:
    nan = "Unexpected result nan on rank 0 at iteration #13 invocation #1 (message='found NaN')"
    built = died()
    built.past.append(died(faults=[fault("rerun-unexpected-result", text=nan)]).attempt)
    assert judged(built, finding(Cause.RERUN)).cause is Cause.NAN
