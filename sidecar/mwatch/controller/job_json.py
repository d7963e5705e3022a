# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched job as JSON, for `/v1/jobs` and `mwatch controller --once --json`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from mwatch import json_codec
from mwatch.decide.verdict import verdict
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.model.decision import Decision
from mwatch.model.finding import Finding, Verdict
from mwatch.remediate.status import RemediationStatus

VERSION = 1
MAX_FINDINGS = 32
_MAX_SILENT = 16


def verdict_of(watch: JobMonitor) -> Verdict | None:
    assessment = watch.assessment
    if assessment is None:
        return None
    return verdict(watch.engine.job, assessment.findings, assessment.decision)


def job_json(watch: JobMonitor, status: RemediationStatus, now: float) -> dict[str, Any]:
    kube, job, assessment = watch.kube, watch.engine.job, watch.assessment
    found = verdict_of(watch)
    seen = watch.seen(now)
    return {
        "kind": kube.kind.value,
        "namespace": kube.namespace,
        "name": kube.name,
        "uid": kube.uid,
        "mode": kube.mode,
        "phase": None if watch.phase is None else watch.phase.value,
        "attempt": watch.attempt,
        "iteration": job.attempt.iteration,
        "total_iterations": job.layout.total_iterations,
        "world_size": job.layout.world_size,
        "progress_at": _iso(job.attempt.progress_at) if job.has_started else None,
        "verdict": None if found is None else _verdict(found),
        "decision": None if assessment is None else _decision(assessment.decision),
        "findings": [] if assessment is None else [
            _finding(each) for each in assessment.findings[:MAX_FINDINGS]
        ],
        "pods": {
            "wanted": kube.pods_wanted,
            "running": len(seen.answering) + len(seen.silent),
            "answering": len(seen.answering),
            "silent": [
                {"pod": each.pod.name, "problem": each.problem or "no answer yet"}
                for each in seen.silent[:_MAX_SILENT]
            ],
        },
        "finished": kube.finished or None,
        "hands": status.to_json(),
        "sight_age_seconds": watch.view_age_seconds,
    }  # fmt: skip


def _verdict(found: Verdict) -> dict[str, Any]:
    return {
        "cause": found.cause.value,
        "summary": found.summary,
        "since": {"iteration": found.since_iteration, "time": _iso(found.since_time)},
        "culprit": json_codec.to_builtins(found.culprit),
        "confidence": found.confidence,
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "action": decision.action.value,
        "resume_from": decision.resume_from,
        "reason": decision.reason,
        "resume_reason": decision.resume_reason or None,
        "act_at": _iso(decision.act_at),
        "witnesses": list(json_codec.to_builtins(decision.witnesses)),
        "avoid_node": decision.avoid_node,
        "quarantine_from": decision.quarantine_from,
        "proposal": decision.proposal,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "detector": finding.detector,
        "cause": finding.cause.value,
        "severity": finding.severity.value,
        "summary": finding.summary,
        "since": {"iteration": finding.since_iteration, "time": _iso(finding.since_time)},
        "confidence": finding.confidence,
        "culprit": json_codec.to_builtins(finding.culprit),
        "evidence": [each._asdict() for each in finding.evidence],
        "cannot_heal": finding.cannot_heal,
        "fault": finding.fault,
    }


def _iso(at: float | None) -> str | None:
    return None if not at else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
