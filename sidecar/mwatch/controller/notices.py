# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notifies people of the incidents of all jobs, once for each stage of an incident.

Only the leader notifies. The ledger holds the incidents that were announced and are not over, and
is written before a message is sent: a controller that starts or becomes the leader finds the same
incidents again, under new numbers, and must not repeat the messages. While the ledger cannot be
written, messages wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

from mwatch.engine.incidents import Incident
from mwatch.errors import InputError
from mwatch.export.notify.message import incident_message
from mwatch.export.notify.notifier import Notifier
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.incident import IncidentRecord, IncidentStage, is_later
from mwatch.model.kube.ledger import MAX_ANNOUNCED, Announced, JobEntry
from mwatch.remediate.manager import Remediation

_CLOSE_SECONDS = 3.0
_QUIET_SECONDS = 600.0
"""An announced incident is over if a new controller has not found it for this long."""


def announce(
    entry: JobEntry, one: Announced, stage: IncidentStage, causes: frozenset[str]
) -> JobEntry:
    """The entry with this stage; unchanged if the stage was announced before. `causes`: all causes
    that were found in the incident. Once an attempt was acted on, further findings in it follow
    from the action and are not announced."""
    same = [each for each in entry.announced if _is_same(each, one, causes)]
    others = [each for each in entry.announced if each not in same]
    of_attempt = [each for each in entry.announced if each.attempt == one.attempt]
    if stage is IncidentStage.RECOVERED:
        return replace(entry, announced=tuple(others)) if same else entry
    if any(each.is_acted for each in of_attempt) or (same and stage is IncidentStage.OPENED):
        return entry
    return replace(entry, announced=(*others, one)[-MAX_ANNOUNCED:])


def _is_same(known: Announced, one: Announced, causes: frozenset[str]) -> bool:
    is_one_stop = known.is_stop and one.is_stop
    return known.attempt == one.attempt and (known.cause in causes or is_one_stop)


def _described(incident: Incident) -> tuple[Announced, frozenset[str]]:
    causes = [each.finding.cause.value for each in incident.symptoms]
    one = Announced(incident.attempt, causes[0], incident.is_stop, incident.is_carried_out)
    return one, frozenset(causes)


def external_address(url: str | None) -> str | None:
    """The address without a trailing slash. InputError if it is not an http(s) address."""
    if url is None:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InputError(
            f"--external-url: {url!r} is not an http(s) address such as https://mwatch.example.com"
        )
    return url.rstrip("/")


@dataclass(slots=True)
class _KnownJob:
    since: float
    stages: dict[int, IncidentStage] = field(default_factory=dict)
    """By number of the incident."""


class FleetNotices:
    def __init__(
        self, urls: Sequence[str], remediation: Remediation, external_url: str | None
    ) -> None:
        """Without URLs no message is sent. InputError if a URL is invalid, or if the package that
        sends the messages is not installed."""
        self._is_on = bool(urls)
        self._external = external_address(external_url)
        self._remediation = remediation
        self._known: dict[str, _KnownJob] = {}
        self._reported: set[str] = set()
        self.notifier = Notifier(urls)

    def update(self, jobs: Iterable[JobMonitor], now: float, *, is_leader: bool) -> None:
        """Called once a second by the loop; never blocks."""
        if not is_leader or not self._is_on:
            self._known = {}
            return
        before, self._known = self._known, {}
        for job in jobs:
            known = self._known[job.kube.uid] = before.get(job.kube.uid) or _KnownJob(now)
            if job.assessment is not None and not job.is_catching_up(now):
                self._look(job, known, now)

    def counts(self, log: Callable[[str], None]) -> dict[str, int]:
        """Messages so far, by result; a problem is logged once."""
        for problem in self.notifier.problems():
            if problem not in self._reported:
                self._reported.add(problem)
                log(problem)
        if not self._is_on:
            return {}
        return {"sent": self.notifier.sent, "failed": self.notifier.failed}

    def close(self) -> None:
        self.notifier.close(_CLOSE_SECONDS)

    def _look(self, job: JobMonitor, known: _KnownJob, now: float) -> None:
        incidents = list(job.engine.incidents)
        stages = {each.number: known.stages.get(each.number) for each in incidents}
        for incident in incidents:
            if is_later(incident.stage, stages[incident.number]):
                stages[incident.number] = incident.stage
                self._announce(job, incident, now)
        known.stages = {number: stage for number, stage in stages.items() if stage is not None}
        entry = self._remediation.entry(job.key, job.kube.uid)
        described = [_described(each) for each in incidents]
        for left in entry.announced:
            is_found = any(_is_same(left, one, causes) for one, causes in described)
            if not is_found and _is_past(left, job, entry, now - known.since):
                self._recovered(job, left, entry, now)

    def _announce(self, job: JobMonitor, incident: Incident, now: float) -> None:
        one, causes = _described(incident)
        world_size = job.engine.job.layout.world_size
        findings = () if job.assessment is None else job.assessment.findings
        record = replace(
            incident.record(_name(job), world_size=world_size), culprit=incident.culprit(findings)
        )
        is_critical = incident.finding.severity is Severity.CRITICAL
        self._send(job, record, incident.stage, one, causes, now, is_critical=is_critical)

    def _recovered(self, job: JobMonitor, left: Announced, entry: JobEntry, now: float) -> None:
        """Announce that an incident of an earlier controller is over."""
        record = next((each for each in entry.incidents if each.attempt == left.attempt), None)
        if record is None:
            cause = Cause(left.cause) if left.cause in set(Cause) else Cause.UNKNOWN
            record = IncidentRecord("", "", left.attempt, cause, "", 1.0, "")
        record = replace(record, run=_name(job))
        causes = frozenset({left.cause})
        self._send(job, record, IncidentStage.RECOVERED, left, causes, now, is_critical=False)

    def _send(
        self,
        job: JobMonitor,
        record: IncidentRecord,
        stage: IncidentStage,
        one: Announced,
        causes: frozenset[str],
        now: float,
        *,
        is_critical: bool,
    ) -> None:
        message = incident_message(
            record, stage, link=self._link(job), is_act=job.is_acting, is_critical=is_critical
        )
        change: Callable[[JobEntry], JobEntry] = partial(
            announce, one=one, stage=stage, causes=causes
        )
        name = f"{stage.value} {one.attempt} {one.cause} {record.id}"
        self._remediation.announce(job, name, change, partial(self.notifier.send, message), now)

    def _link(self, job: JobMonitor) -> str:
        namespace, name = job.kube.namespace, job.kube.name
        if self._external is not None:
            return f"{self._external}/jobs/{namespace}/{name}"
        return f"mwatch ui {name} -n {namespace}"


def _name(job: JobMonitor) -> str:
    return f"{job.kube.namespace}/{job.kube.name}"


def _is_past(left: Announced, job: JobMonitor, entry: JobEntry, seconds: float) -> bool:
    """Whether an announced incident is over: a later attempt has passed its iteration or, in the
    same attempt, it was not found for a while. `seconds`: how long this controller has watched the
    job."""
    attempt = job.engine.job.attempt
    if attempt.number == left.attempt:
        return not left.is_acted and seconds > _QUIET_SECONDS
    act = next((each for each in entry.acts if each.attempt == left.attempt), None)
    reached = 0 if act is None or act.iteration is None else act.iteration
    return attempt.iteration is not None and attempt.iteration > reached
