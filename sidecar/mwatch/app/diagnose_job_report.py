# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was learnt about a live job: the object behind the screen, `--json` and the bundle.

Times are seconds since 1970 inside, and UTC in JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mwatch.app.diagnose_job_deeds import Deed
from mwatch.app.diagnose_job_facts import JobFacts
from mwatch.app.diagnose_job_pods import PodWords
from mwatch.app.diagnose_job_story import Story
from mwatch.app.report import Report, iso
from mwatch.model.check import CheckState, Found, Level, Made
from mwatch.model.finding import Evidence
from mwatch.model.kube_pod import KubePod
from mwatch.model.phase import JobPhase

VERSION = 1


@dataclass(frozen=True, slots=True)
class JobReport:
    facts: JobFacts
    words: tuple[PodWords, ...]
    story: Story
    report: Report
    checks: tuple[Made, ...]
    deeds: tuple[Deed, ...]
    next_command: str
    notes: tuple[str, ...]
    phase: JobPhase | None
    took_seconds: float

    @property
    def exit_code(self) -> int:
        return self.report.exit_code

    @property
    def found(self) -> list[Found]:
        """By the checks; the worst first."""
        order = list(Level)
        every = [one for each in self.checks for one in each.found]
        return sorted(every, key=lambda each: order.index(each.level))

    @property
    def answering(self) -> int:
        """Sidecars."""
        return sum(each.snapshot is not None for each in self.words)

    @property
    def logs_read(self) -> int:
        return sum(bool(each.logs) for each in self.words)

    def evidence_time(self, evidence: Evidence) -> float | None:
        return self.story.time_of(evidence)

    def count(self, state: CheckState) -> int:
        return sum(each.state is state for each in self.checks)

    def to_json(self) -> dict[str, Any]:
        body = self.report.to_json()
        body["recording"]["clock"] = "utc"
        for found, finding in zip(body["findings"], self.report.findings, strict=True):
            for shown, evidence in zip(found["evidence"], finding.evidence, strict=True):
                shown["time"] = self.report.time(self.evidence_time(evidence))
        return {
            "version": VERSION,
            **body,
            "next_command": self.next_command,
            "job": self._job(),
            "pods": [self._pod(each) for each in self.facts.kube.pods],
            "nodes": self._nodes(),
            "mwatch": {
                "did": [{"time": _time(each.at), "text": each.text, "source": each.source}
                        for each in self.deeds],
                "controller": self.facts.controller,
            },
            "checks": [check_json(each) for each in self.checks],
            "unseen": dict(self.facts.unseen),
            "notes": list(self.notes),
            "took_seconds": round(self.took_seconds, 3),
        }  # fmt: skip

    def _job(self) -> dict[str, Any]:
        job, pods = self.facts.job, self.facts.kube.pods
        return {
            "kind": job.kind.value,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
            "created": _time(job.created_at),
            "mode": job.mode,
            "is_watched": job.is_watched,
            "state": job.finished or ("Suspended" if job.is_suspended else "Active"),
            "phase": self.phase and self.phase.value,
            "queue": job.queue or None,
            "pods": {
                "wanted": job.pods_wanted,
                "running": sum(pod.phase == "Running" for pod in pods),
                "answering": self.answering,
                "logs_read": self.logs_read,
            },
            "iteration": self.report.iteration,
            "total_iterations": self.report.total_iterations,
        }

    def _pod(self, pod: KubePod) -> dict[str, Any]:
        words = next((each for each in self.words if each.pod.uid == pod.uid), None)
        return {
            "name": pod.name,
            "uid": pod.uid,
            "node": pod.node or None,
            "phase": pod.phase,
            "restarts": pod.restarts,
            "is_deleting": pod.is_deleting,
            "sidecar": _sidecar(words),
            "log": None if words is None else words.problem or ("read" if words.logs else None),
        }

    def _nodes(self) -> list[dict[str, Any]] | None:
        nodes = self.facts.kube.nodes
        if nodes is None:
            return None
        return [
            {"name": each.name, "is_ready": each.is_ready, "is_cordoned": each.is_cordoned,
             "taints": [taint.key for taint in each.taints]}
            for each in nodes
        ]  # fmt: skip


def check_json(made: Made) -> dict[str, Any]:
    found = [
        {"level": each.level.value, "what": each.what, "mend": each.mend} for each in made.found
    ]
    return {
        "check": made.check,
        "about": made.about,
        "state": made.state.value,
        "why": made.why or None,
        "found": found,
    }


def _sidecar(words: PodWords | None) -> str | None:
    """`answers`, why not, or None: it has none."""
    if words is None or (words.snapshot is None and not words.sidecar):
        return None
    return "answers" if words.snapshot is not None else words.sidecar


def _time(at: float | None) -> str | None:
    return None if at is None else iso(at) + "Z"
