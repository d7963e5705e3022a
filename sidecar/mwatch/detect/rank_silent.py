# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe of a rank stopped writing while those of other ranks go on.

The process is stopped, dead or holds the GIL; or, if the job goes on, only its probe is broken. If
all probes fall silent at once, `blind` reports it. A process that the kernel shows as stopped
counts only after two checks in a row.
"""

from __future__ import annotations

from mwatch.detect.shared import evidence
from mwatch.detect.shared.culprit import Suspect, culprit, fell_silent_after, silent_suspect
from mwatch.detect.shared.probe import ProbedRanks, probed_ranks
from mwatch.detect.shared.progress import last_iteration_at, step_limit
from mwatch.detect.shared.stall import fresh_signs, given_up
from mwatch.model.cause import Cause
from mwatch.model.finding import CulpritState, Detector, Finding, Severity
from mwatch.model.job import Job, RankState, SignSeen
from mwatch.model.observation import SignState, Source
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings

_OVER = frozenset({JobPhase.STOPPING, JobPhase.ENDED})
_STARTING = frozenset({JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP})
_BUSY = _STARTING | {JobPhase.SAVING, JobPhase.ASYNC_FINALIZE}
"""Index builds, unpickling and writing hold the GIL for minutes: silence is normal there."""
_STOPPED = frozenset({SignState.STOPPED, SignState.SUSPENDED, SignState.DEAD})


def detect(job: Job, settings: Settings) -> list[Finding]:
    attempt = job.attempt
    is_over = attempt.ended_at is not None or attempt.exit is not None or attempt.is_done
    if is_over or attempt.phase in _OVER:
        return []
    probe = probed_ranks(job, settings)
    suspect = silent_suspect(probe) or _stopped_suspect(job, settings)
    if suspect is None or suspect.rank is None:
        return []
    ended = given_up(job, attempt.last_progress)
    if fell_silent_after(job, suspect, ended, settings.hang.beat_silence_seconds):
        return []
    rank = attempt.ranks[suspect.rank]
    proof = _proof(job, rank, settings)
    if proof is None and _goes_on(job, rank, settings):
        return [_broken_probe(rank)]
    cause = Cause.LOST_POD if _is_pod_lost(job, probe, rank, settings) else Cause.HANG
    is_usual = proof is None and (rank.phase in _BUSY or attempt.phase in _BUSY)
    quiet = probe.quiet.get(rank.rank, job.now - rank.at)
    if is_usual and quiet < settings.hang.blind_after_seconds:
        return []
    seen = () if proof is None else (evidence.of_sign(proof),)
    return [
        Finding(
            detector="rank_silent",
            cause=cause,
            severity=Severity.WARNING if is_usual else Severity.CRITICAL,
            summary=_summary(probe, rank, quiet, cause),
            since_time=rank.at,
            since_iteration=None if rank.iteration is None else rank.iteration + 1,
            confidence=0.9 if proof else 0.3 if is_usual else 0.6,
            culprit=culprit(job, suspect),
            evidence=(*seen, evidence.of_text(suspect.text)),
            cannot_heal=proof is not None,
            fingerprint=f"{cause.value}/rank-silent",
        )
    ]


def _summary(probe: ProbedRanks, rank: RankState, quiet: float, cause: Cause) -> str:
    more = max(len(probe.silent) - 1, 0)
    ranks = f"rank {rank.rank}" + (f" and {more} more" if more else "")
    if cause is Cause.LOST_POD:
        return (
            f"pod {rank.stream} is gone: {ranks} silent for {quiet:.0f} s, and nothing else of it"
        )
    return f"{ranks} silent for {quiet:.0f} s: stopped, or holding the GIL, while others go on"


def _stopped_suspect(job: Job, settings: Settings) -> Suspect | None:
    """Return a rank that two checks show as stopped, silent since then, while another goes on."""
    look = settings.hang.look_seconds
    newest = max((rank.at for rank in job.attempt.ranks.values()), default=0.0)
    for seen in job.attempt.signs.values():
        rank = None if seen.sign.rank is None else job.attempt.ranks.get(seen.sign.rank)
        if rank is None or seen.sign.state is not SignState.STOPPED:
            continue
        is_lasting = seen.at - seen.since >= look / 2
        if is_lasting and rank.at <= seen.since + look / 2 and newest - rank.at >= look:
            text = f"probe: rank {rank.rank} has written nothing since, others go on"
            return Suspect(rank.rank, CulpritState.SILENT, text)
    return None


def _proof(job: Job, rank: RankState, settings: Settings) -> SignSeen | None:
    for seen in fresh_signs(job, rank.at, settings):
        is_of_pod = seen.sign.rank is None and seen.stream == rank.stream
        if seen.sign.state in _STOPPED and (seen.sign.rank == rank.rank or is_of_pod):
            return seen
    return None


def _goes_on(job: Job, rank: RankState, settings: Settings) -> bool:
    """Whether training goes on: without this rank, no other can finish more than one iteration."""
    last = last_iteration_at(job.attempt)
    margin = step_limit(job, settings) or settings.deadlines.training.default_seconds
    margin += settings.hang.beat_silence_seconds + settings.hang.clock_seconds
    return last is not None and last - rank.at > margin


def _broken_probe(rank: RankState) -> Finding:
    return Finding(
        detector="rank_silent",
        cause=Cause.BLIND,
        severity=Severity.WARNING,
        summary=f"the probe of rank {rank.rank} is silent, training goes on: only it is broken",
        since_time=rank.at,
        confidence=0.8,
        fingerprint="blind/probe-of-one-rank",
    )


def _is_pod_lost(job: Job, probe: ProbedRanks, rank: RankState, settings: Settings) -> bool:
    """Whether all ranks and all other output of the pod stopped together."""
    if any(other.stream == rank.stream for other in probe.beating):
        return False
    stream = job.streams.get(rank.stream)
    together = [other.at for other in probe.silent if other.stream == rank.stream]
    if stream is None or stream.last_at is None or len(together) < 2:
        return False
    moment = 2 * settings.hang.look_seconds
    return max(together) - min(together) <= moment and stream.last_at - max(together) <= moment


DETECTOR = Detector("rank_silent", frozenset({Source.PROBE}), detect, runbook="collective-timeout")
