# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report on a live job: the model behind the screen output, `--json` and the bundle.

Times are seconds since 1970, and UTC in JSON. Actions of mwatch come from the controller, which
knows what is in progress; from the ledger, which outlives it; and from Events, which Kubernetes
deletes after an hour but which need the fewest permissions. A bundle (`--bundle FILE.tgz`) contains
everything that was read. It is bounded, scrubbed of secrets, written atomically, and readable only
by its owner.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.diagnose.cluster_facts import JobFacts
from mwatch.diagnose.pod_reports import PodReport
from mwatch.diagnose.timeline import JobHistory
from mwatch.errors import InputError
from mwatch.model.checks import CheckLevel, Outcome, Problem
from mwatch.model.decision import Act, Action
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube.job import pause_of
from mwatch.model.kube.pod import KubePod
from mwatch.model.phase import JobPhase
from mwatch.report.files import check_target
from mwatch.report.markdown import json_text
from mwatch.report.run_report import RunReport, iso
from mwatch.runtime.files import replacing
from mwatch_trainer.scrub.known_good import scrubbed, variable
from mwatch_trainer.scrub.scrubber import Scrubber, scrub_text

MAX_ACTIONS = 6


class ActionTaken(NamedTuple):
    at: float | None
    text: str
    source: str
    """`controller`, `ledger`, `event` or `annotation`."""


def actions_taken(facts: JobFacts) -> list[ActionTaken]:
    """Return what is in effect now, then past actions, newest first."""
    now = [*_pauses(facts), *_in_progress(facts.controller)]
    past = sorted(_past(facts), key=lambda each: -(each.at or 0.0))
    return list(dict.fromkeys([*now, *past]))[:MAX_ACTIONS]


def _pauses(facts: JobFacts) -> Iterator[ActionTaken]:
    pause = pause_of(facts.job, facts.kube.now)
    if pause is not None:
        yield ActionTaken(pause.until, f"paused ({pause.words or 'by hand'})", "annotation")
    halt = None if facts.book is None else facts.book.halt
    if halt is not None and (halt.until is None or halt.until > facts.kube.now):
        yield ActionTaken(halt.at, f"all actions are stopped by {halt.who}: {halt.why}", "ledger")


_OLD_KEY = "hands"
"""Key that earlier controllers wrote; supported until 0.3."""


def _in_progress(controller: Mapping[str, Any] | None) -> Iterator[ActionTaken]:
    found = controller or {}
    status = found.get("remediation", found.get(_OLD_KEY))
    if not isinstance(status, Mapping):
        return
    since = status.get("since")
    at = float(since) if isinstance(since, int | float) else None
    for key in ("text", "last"):
        if status.get(key):
            yield ActionTaken(at if key == "text" else None, str(status[key]), "controller")


def _past(facts: JobFacts) -> Iterator[ActionTaken]:
    entry = None if facts.book is None else facts.book.of(facts.key)
    if entry is None or (entry.uid and entry.uid != facts.job.uid):
        yield from _events(facts)
        return
    for act in entry.acts:
        yield ActionTaken(act.at, _act(act, entry.incidents), "ledger")
    for note in entry.notes:
        yield ActionTaken(note.at, f"{note.what} by {note.who}: {note.why}", "ledger")
    if entry.step is not None and entry.is_under_way:
        yield ActionTaken(None, f"a gang restart is in progress ({entry.step.id})", "ledger")
    if not entry.acts and not entry.notes:
        yield from _events(facts)


def _events(facts: JobFacts) -> Iterator[ActionTaken]:
    for each in facts.mwatch_events:
        yield ActionTaken(each.at, f"{each.reason}: {each.text}", "event")


def _act(act: Act, incidents: tuple[IncidentRecord, ...]) -> str:
    record = next((each for each in incidents if each.attempt == act.attempt), None)
    is_real = record is None or record.is_carried_out
    verb = {Action.RESTART: "restarted", Action.STOP: "stopped"}.get(act.action, act.action.value)
    if not is_real:
        verb = f"would have {verb}"
    place = "" if act.resume_from is None else f" from checkpoint {act.resume_from}"
    return f"{verb} attempt {act.attempt}{place} ({act.cause.value})"


VERSION = 1


@dataclass(frozen=True, slots=True)
class JobReport:
    facts: JobFacts
    pods: tuple[PodReport, ...]
    history: JobHistory
    report: RunReport
    checks: tuple[Outcome, ...]
    actions: tuple[ActionTaken, ...]
    next_command: str
    phase: JobPhase | None
    took_seconds: float

    @property
    def exit_code(self) -> int:
        return self.report.exit_code

    @property
    def found(self) -> list[Problem]:
        """Problems found by the checks, worst first."""
        order = list(CheckLevel)
        every = [one for each in self.checks for one in each.found]
        return sorted(every, key=lambda each: order.index(each.level))

    @property
    def answering(self) -> int:
        """How many sidecars answered."""
        return sum(each.snapshot is not None for each in self.pods)

    @property
    def logs_read(self) -> int:
        return sum(bool(each.logs) for each in self.pods)

    def to_json(self) -> dict[str, Any]:
        body = self.report.to_json()
        for found, finding in zip(body["findings"], self.report.findings, strict=True):
            for shown, evidence in zip(found["evidence"], finding.evidence, strict=True):
                shown["time"] = self.report.time(self.history.time_of(evidence))
        return {
            "version": VERSION,
            **body,
            "next_command": self.next_command,
            "job": self._job(),
            "pods": [self._pod(each) for each in self.facts.kube.pods],
            "nodes": self._nodes(),
            "mwatch": {
                "did": [{"time": _time(each.at), "text": each.text, "source": each.source}
                        for each in self.actions],
                "controller": self.facts.controller,
            },
            "checks": [check_json(each) for each in self.checks],
            "unavailable": dict(self.facts.unavailable),
            "unseen": dict(self.facts.unavailable),  # its old key, removed in 0.3
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
        report = next((each for each in self.pods if each.pod.uid == pod.uid), None)
        return {
            "name": pod.name,
            "uid": pod.uid,
            "node": pod.node or None,
            "phase": pod.phase,
            "restarts": pod.restarts,
            "is_deleting": pod.is_deleting,
            "sidecar": _sidecar(report),
            "log": None if report is None else report.problem or ("read" if report.logs else None),
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


def check_json(made: Outcome) -> dict[str, Any]:
    found = [
        # "mend" is deprecated, until 0.3
        {"level": each.level.value, "what": each.what, "fix": each.fix, "mend": each.fix}
        for each in made.found
    ]
    return {
        "check": made.check,
        "about": made.about,
        "state": made.state.value,
        "why": made.why or None,
        "found": found,
    }


def _sidecar(report: PodReport | None) -> str | None:
    """Return `answers`, the reason why it does not, or None if the pod has no sidecar."""
    if report is None:
        return None
    return "answers" if report.snapshot is not None else report.sidecar or None


def _time(at: float | None) -> str | None:
    return None if at is None else iso(at) + "Z"


MAX_BYTES = 64 * 1024 * 1024
"""Limit before compression; logs are written last, so they are the first to be left out."""
_LOG_BYTES = 512 * 1024


def write_bundle(report: JobReport, file: Path) -> str:
    """Write the bundle; return a summary such as `12 files`."""
    check_target(file)
    name = f"{report.facts.job.namespace}-{report.facts.job.name}"
    try:
        with replacing(file, mode=0o600) as out:
            return _write(report, out, name)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}; name another file") from error


def _write(report: JobReport, out: Any, name: str) -> str:
    left, files, left_out = MAX_BYTES, 0, 0
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, text in _contents(report):
            data = scrub_text(text).encode("utf-8", "backslashreplace")
            if len(data) > left:
                left_out += 1
                continue
            left -= len(data)
            files += 1
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mode, info.mtime = len(data), 0o600, int(report.facts.kube.now)
            archive.addfile(info, io.BytesIO(data))
    more = f", {left_out} left out for their size" if left_out else ""
    return f"{files} files{more}"


def _contents(report: JobReport) -> Iterator[tuple[str, str]]:
    facts = report.facts
    yield "verdict.json", json_text(report.to_json())
    yield "job.json", _json(facts.found.body)
    yield "pods.json", _json(list(facts.bodies.values()))
    yield "events.json", _json(list(facts.events))
    for other in facts.others:
        yield f"objects/{other.kind}-{other.name}.json", _json(other.content)
    for each in report.pods:
        if each.raw:
            yield f"snapshots/{each.pod.name}.json", _json(each.raw)
    for each in report.pods:
        for log in each.logs:
            end = ".previous" if log.is_previous else ""
            data = (log.head[-_LOG_BYTES:] + log.tail[-_LOG_BYTES:]).decode("utf-8", "replace")
            yield f"logs/{log.pod}.{log.container}{end}.log", data


def _json(body: Any) -> str:
    return json.dumps(_masked(body), indent=2, ensure_ascii=False, default=str)


_COMMANDS = ("command", "args")


def _masked(value: Any) -> Any:
    """Mask secrets that the text scrubber cannot recognize, because `name` and `value` of a
    variable, or a flag and its value, are separate strings."""
    if isinstance(value, dict):
        return _masked_object(value)
    if isinstance(value, list | tuple):
        return [_masked(each) for each in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_object(value: dict[str, Any]) -> dict[str, Any]:
    name, text = value.get("name"), value.get("value")
    if isinstance(name, str) and isinstance(text, str):
        return {**value, "value": variable(name, text, Scrubber())}
    return {key: _masked_field(key, each) for key, each in value.items() if key != "managedFields"}


def _masked_field(key: str, value: Any) -> Any:
    if key in _COMMANDS and isinstance(value, list) and all(isinstance(e, str) for e in value):
        return scrubbed(value, Scrubber())
    if isinstance(value, str) and key.isupper():
        return variable(key, value, Scrubber())
    return _masked(value)


def _masked_text(text: str) -> str:
    """Mask JSON inside a string: an annotation may contain the whole manifest again."""
    if not text.startswith("{"):
        return text
    try:
        return json.dumps(_masked(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
