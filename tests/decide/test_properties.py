# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Invariants: no bad checkpoint, no action on one witness, no restart over the budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.decide.decide import decide, record_action
from mwatch.decide.resume import choose, first_bad
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Attempt, Job, KnownCheckpoint, LoadState, ProcessGone
from mwatch.model.observation import ProcessExit, SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import ActSettings, CheckpointSettings, Settings
from mwatch.model.timeline import Rollback
from support.builders.decide import decided, died, finding, record, running
from support.builders.job import START, add_sign, fault

ITERATIONS = st.integers(1, 12).map(lambda number: number * 100)
MOMENTS = st.none() | st.floats(START, START + 2000)


@st.composite
def checkpoints(draw: st.DrawFn) -> KnownCheckpoint:
    return KnownCheckpoint(
        draw(ITERATIONS),
        saved_at=draw(MOMENTS),
        attempt=draw(st.none() | st.integers(1, 3)),
        is_saved=draw(st.booleans()),
        stored=draw(st.sampled_from([None, "complete", "unverified", "incomplete", "missing"])),
        written_at=draw(MOMENTS),
        load_failed=draw(st.booleans()),
        is_abandoned=draw(st.booleans()),
    )


ROLLBACKS = st.builds(
    Rollback, st.floats(START, START + 2000), ITERATIONS, st.none() | ITERATIONS, st.just("")
)
LOADS: st.SearchStrategy[LoadState] = st.sampled_from(
    ["unknown", "begun", "loaded", "random", "failed"]
)


@st.composite
def dead_jobs(draw: st.DrawFn) -> Job:
    built = died(draw(st.integers(1, 1300)), number=3)
    for known in draw(st.lists(checkpoints(), max_size=8)):
        built.checkpoints[known.iteration] = known
    built.timeline.rollbacks.extend(draw(st.lists(ROLLBACKS, max_size=2)))
    built.attempt.load = draw(LOADS)
    built.attempt.load_iteration = draw(st.none() | ITERATIONS)
    built.attempt.resumed_from = draw(st.none() | ITERATIONS)
    built.attempt.is_done = draw(st.booleans())
    return built


@st.composite
def findings(draw: st.DrawFn, causes: st.SearchStrategy[Cause]) -> Finding:
    return finding(
        draw(causes),
        detector=draw(st.sampled_from(["crashed", "stalled", "rank_silent", "loss_missing"])),
        severity=draw(st.sampled_from(list(Severity))),
        since_time=draw(MOMENTS),
        since_iteration=draw(st.none() | st.integers(1, 1300)),
        cannot_heal=draw(st.booleans()),
    )


ANY_FINDINGS = st.lists(findings(st.sampled_from(list(Cause))), max_size=4)


def is_sound(built: Job, iteration: int) -> bool:
    attempt = built.attempt
    known = built.checkpoints.get(iteration, KnownCheckpoint(iteration))
    has_tried = iteration in (attempt.resumed_from, attempt.load_iteration)
    is_taken = has_tried and attempt.load not in ("failed", "random")
    written = known.saved_at if known.written_at is None else known.written_at
    if known.is_abandoned or built.timeline.is_abandoned(iteration, written):
        return False
    if known.load_failed or known.stored in ("incomplete", "missing"):
        return False
    return known.is_saved or known.stored is not None or is_taken


@settings(max_examples=60)
@given(dead_jobs(), ANY_FINDINGS)
def test_never_from_an_incomplete_an_abandoned_or_a_failed_checkpoint(
    built: Job, found: list[Finding]
) -> None:
    decision = decided(built, *found)
    if decision.resume_from is not None:
        assert decision.action is Action.RESTART
        assert is_sound(built, decision.resume_from)


@settings(max_examples=60)
@given(dead_jobs())
def test_the_choice_is_the_newest_sound_one_and_unverified_only_alone(built: Job) -> None:
    choice = choose(built, before=None)
    sound = {number for number in built.checkpoints if is_sound(built, number)}
    sure = {number for number in sound if built.checkpoints[number].stored != "unverified"}
    if choice.iteration in built.checkpoints:
        assert choice.iteration == max(sure or sound)
    elif choice.iteration is None:
        assert not sound


@settings(max_examples=60)
@given(dead_jobs(), findings(st.sampled_from([Cause.NAN, Cause.LOSS_SPIKE])), st.integers(0, 300))
def test_a_rollback_always_goes_to_before_the_first_bad_iteration(
    built: Job, bad: Finding, margin: int
) -> None:
    limits = CheckpointSettings(margin_iterations=margin)
    decision = decided(built, bad, settings=Settings(checkpoints=limits))
    if decision.action is Action.RESTART:
        assert (decision.resume_from or 0) < first_bad(built, bad)
        assert (decision.resume_from or 0) + 1 == decision.quarantine_from


LONE = st.sampled_from([SignState.UNKNOWN, SignState.MOVING, SignState.ALL_EQUAL])


@given(
    st.floats(0, 10_000),
    st.lists(st.tuples(st.sampled_from(list(SignSource)), LONE, st.none() | st.integers(0, 7))),
    st.lists(findings(st.just(Cause.HANG)), min_size=1, max_size=3),
    st.sampled_from([phase for phase in JobPhase if phase is not JobPhase.ENDED]),
    st.booleans(),
)
def test_without_a_second_witness_a_hang_is_never_restarted(
    silent: float,
    signs: list[tuple[SignSource, SignState, int | None]],
    found: list[Finding],
    phase: JobPhase,
    has_probe: bool,
) -> None:
    sights = (Source.LOG, Source.PROBE) if has_probe else (Source.LOG,)
    built = running(silent=silent, phase=phase, sights=sights)
    for source, state, number in signs:
        add_sign(built, source, state, rank=number)
    built.attempt.faults.append(fault("ib-port-error", at=built.now))
    assert decided(built, *found).action is Action.NONE


TROUBLE = st.sampled_from(
    [Cause.CRASH, Cause.KILLED, Cause.HARDWARE, Cause.NAN, Cause.RERUN, Cause.CHECKPOINT]
)
ATTEMPTS = st.lists(
    st.tuples(TROUBLE, st.integers(60, 600), st.floats(0, 5000), st.sampled_from("abc")),
    max_size=25,
)


@settings(max_examples=60)
@given(ATTEMPTS, st.integers(0, 6), st.integers(1, 9))
def test_restarts_in_any_window_never_exceed_the_budget(
    story: list[tuple[Cause, int, float, str]], allowed: int, in_vain: int
) -> None:
    limits = ActSettings(
        restarts_per_window=allowed,
        window_seconds=10_000,
        max_without_progress=in_vain,
        max_same_fingerprint=in_vain,
    )
    done, now = record(), START + 1000
    past: list[Attempt] = []
    for number, (cause, last, lasted, mark) in enumerate(story, start=1):
        now += lasted
        built = died_at(number, last, now)
        built.past.extend(past[-8:])
        trouble = finding(cause, since_time=now, since_iteration=last, fingerprint=mark)
        decision = decide(built, [trouble], done, Settings(act=limits))
        if decision.action is not Action.NONE:
            assert decision.act_at is not None
            now = max(now, decision.act_at)
            record_action(done, decision, built, at=now)
        past.append(built.attempt)
    times = [act.at for act in done.acts if act.action is Action.RESTART]
    for end in times:
        assert sum(end - 10_000 < at <= end for at in times) <= allowed


def died_at(number: int, last: int, now: float) -> Job:
    built = running(last, number=number)
    built.now = now
    built.attempt.phase = JobPhase.ENDED
    built.attempt.ended_at = now
    built.attempt.gone["pod-0"] = ProcessGone(now, "pod-0", ProcessExit(1, None, None))
    return built
