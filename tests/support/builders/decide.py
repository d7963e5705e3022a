# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Readable findings, deaths and past acts for the tests of decisions."""

from __future__ import annotations

from typing import Any

from mwatch.decide.decide import decide
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action, Decision, DecisionRecord
from mwatch.model.finding import Finding, Severity
from mwatch.model.job import Job, ProcessGone
from mwatch.model.observation import ProcessExit, SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import ActSettings, Settings
from support.builders.job import START, job, step

HOUR = 3600.0


_DETECTORS = {
    Cause.HANG: "stalled",
    Cause.NAN: "loss_missing",
    Cause.LOSS_SCALE_COLLAPSE: "loss_scale_collapse",
    Cause.LOSS_SPIKE: "loss_spike",
    Cause.STARTED_FROM_RANDOM: "started_from_random",
}


def finding(cause: Cause, **change: Any) -> Finding:
    """Critical, from the detector that usually says so, since the end of the built job."""
    detector = _DETECTORS.get(cause, "crashed")
    usual: dict[str, Any] = {
        "detector": detector,
        "severity": Severity.CRITICAL,
        "summary": f"found {cause}",
        "since_time": START + 200.0,
        "fingerprint": f"{cause}/x",
    }
    return Finding(cause=cause, **(usual | change))


def running(last: int = 100, *, silent: float = 0.0, **change: Any) -> Job:
    """It has done iterations up to `last`, one a second, and nothing for `silent` seconds."""
    lines = [step(number) for number in range(max(1, last - 19), last + 1)]
    sights = change.pop("sights", (Source.LOG, Source.PROBE))
    return job(lines, now=lines[-1].at + silent, sights=sights, **change)


def died(last: int = 100, *, code: int | None = 1, signal: str | None = None, **more: Any) -> Job:
    """As `running`, and then its process has ended."""
    built = running(last, **more)
    end = built.now
    built.attempt.phase = JobPhase.ENDED
    built.attempt.ended_at = end
    built.attempt.gone["pod-0"] = ProcessGone(end, "pod-0", ProcessExit(code, signal, None))
    return built


def act(attempt: int, iteration: int | None = None, **change: Any) -> Act:
    """A restart for a crash, one a minute."""
    usual: dict[str, Any] = {
        "at": START + 60.0 * attempt,
        "action": Action.RESTART,
        "cause": Cause.CRASH,
        "fingerprint": "other",
        "resume_from": 10,
        "spends_budget": True,
    }
    return Act(attempt=attempt, iteration=iteration, **(usual | change))


def record(*acts: Act) -> DecisionRecord:
    built = DecisionRecord()
    built.acts.extend(acts)
    return built


def decided(
    built: Job,
    *findings: Finding,
    acts: tuple[Act, ...] = (),
    settings: Settings | None = None,
    **limits: Any,
) -> Decision:
    """`limits` are fields of ActSettings. The jobs built here have no checkpoints: unless a test is
    about that, it does not matter."""
    usual = {"restart_stalled_from_beginning": True}
    chosen = settings or Settings(act=ActSettings(**(usual | limits)))
    return decide(built, list(findings), record(*acts), chosen)


CPU, GPU, RAS = SignSource.CPU_TIME, SignSource.GPU_ACTIVITY, SignSource.NCCL_RAS
PROCESS, RECORDER = SignSource.PROCESS, SignSource.FLIGHT_RECORDER
FLAT, MOVING, DEAD, STOPPED = (
    SignState.FLAT,
    SignState.MOVING,
    SignState.DEAD,
    SignState.STOPPED,
)
