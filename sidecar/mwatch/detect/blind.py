# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""mwatch cannot observe the job, so the job counts as neither healthy nor hung.

No source is available, all sources fell silent at once, or the output format is unknown.
"""

from __future__ import annotations

from mwatch.detect.shared import evidence
from mwatch.detect.shared.probe import probed_ranks
from mwatch.detect.shared.stall import stall
from mwatch.detect.shared.steps import is_all_skipped
from mwatch.model.cause import Cause
from mwatch.model.finding import Detector, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.observation import Source
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.model.settings import Settings
from mwatch.model.step import Step

_INACTIVE = frozenset({JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.ENDED})
_PROGRESS_SOURCES = (Source.LOG, Source.PROBE)
"""Sources that show progress; the other sources are only witnesses."""


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    if attempt.phase in _INACTIVE or attempt.ended_at is not None or attempt.is_done:
        return []
    if not any(job.sees(view) for view in _PROGRESS_SOURCES):
        return _no_source(job, settings)
    return _all_silent(job, settings) or _no_lines(job, settings) or _no_loss(job, settings)


def _no_source(job: Job, settings: Settings) -> list[Finding]:
    lost = [(view, job.sources[view]) for view in _PROGRESS_SOURCES if view in job.sources]
    if lost:
        why = ", ".join(f"{view.value}: {state.reason}" for view, state in lost)
        since = max(state.since for _, state in lost)
        return [_finding("sources", f"no data on the job ({why})", since)]
    since = job.attempt.started_at
    if job.has_started and job.now - since < settings.hang.blind_after_seconds:
        return []
    text = "no data on the job: neither its log nor a probe can be read"
    return [_finding("sources", text, since or None)]


def _all_silent(job: Job, settings: Settings) -> list[Finding]:
    probe = probed_ranks(job, settings)
    if not probe.is_dark:
        return []
    found = stall(job, settings)
    if job.sees(Source.LOG) and (found is None or not found.is_unobserved):
        return []
    if job.now - probe.newest < settings.hang.blind_after_seconds:
        return []
    text = f"all {len(probe.silent)} probes fell silent at once, and so did the log"
    return [_finding("silence", text, probe.newest)]


def _no_lines(job: Job, settings: Settings) -> list[Finding]:
    """A trainer is running, but no iteration line in its output was ever recognised."""
    attempt = job.attempt
    if attempt.steps or any(rank.iteration is not None for rank in attempt.ranks.values()):
        return []
    if any(stream.prints_iterations for stream in job.streams.values()):
        return []
    if not job.sees(Source.LOG) or not _runs_unobserved(job):
        return []
    since = attempt.started_at
    if since <= 0 or job.now - since < job.calibration.deadline(DeadlineSlot.FIRST_STEP, settings):
        return []
    text = "no iteration line was recognised: unknown format, or not the log of the last rank"
    return [_finding("no-lines", text, since)]


def _runs_unobserved(job: Job) -> bool:
    """Whether `stalled` cannot judge this phase; it reports a start or first step that hangs."""
    phase, layout = job.attempt.phase, job.layout
    if phase is JobPhase.STARTING:
        return layout.log_interval is None and layout.world_size is None
    return phase not in (JobPhase.LOADING, JobPhase.FIRST_STEP, JobPhase.STOPPING)


def _no_loss(job: Job, settings: Settings) -> list[Finding]:
    """No line from the first one on has a loss: unknown format, or NaN from the start."""
    steps = job.attempt.steps
    if not steps or steps[-1].losses or len(steps) < settings.hang.unknown_lines:
        return []
    if steps[-1].flavour == "torchtitan":
        return []  # the first stages of its pipelines print -1, which is not a loss
    is_from_the_first = steps[0].first_covered <= (job.attempt.first_iteration or 0)
    if not is_from_the_first or any(step.losses for step in (*steps, *job.earlier_steps.values())):
        return []
    bare = [step for step in steps if not is_all_skipped(step)]
    if len(bare) < settings.hang.unknown_lines:
        return []
    text = f"no loss in any of {len(bare)} iteration lines: unknown format, or NaN from the start"
    return [_finding("no-loss", text, bare[0].at, bare[0])]


def _finding(what: str, text: str, since: float | None, first: Step | None = None) -> Finding:
    return Finding(
        detector="blind",
        cause=Cause.BLIND,
        severity=Severity.WARNING,
        summary=text,
        since_time=since,
        since_iteration=first.first_covered if first else None,
        evidence=(evidence.of_step(first),) if first else (),
        fingerprint=f"blind/{what}",
    )


DETECTOR = Detector("blind", frozenset(), detect, runbook="collective-timeout")
