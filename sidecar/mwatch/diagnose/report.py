# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was learnt about a live job: the object behind the screen, `--json` and the bundle.

Times are seconds since 1970 inside, and UTC in JSON.

What mwatch did to a job, or was kept from: by the controller, its ledger, and its Events.

The controller is asked first, and knows what is under way; the ledger outlives it; Events are
forgotten after an hour, and are there for who may read nothing else.

`--bundle FILE.tgz`: all that was seen of a job in one file, for a ticket or another person.

Manifests, pods, events, ends of the logs, snapshots, verdict. Secrets are taken out of every text;
values of variables whose names sound like secrets are, too. Bounded, written whole or not at all,
and readable by its owner only.
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
from mwatch.model.checks.check import CheckLevel, CheckState, Made, Problem
from mwatch.model.decision import Act, Action
from mwatch.model.finding import Evidence
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube.pause import pause_of
from mwatch.model.kube.pod import KubePod
from mwatch.model.phase import JobPhase
from mwatch.report.markdown import json_text
from mwatch.report.run_report import RunReport, iso
from mwatch.runtime.files import replacing
from mwatch_trainer.scrub.environment import is_secret_name
from mwatch_trainer.scrub.scrubber import scrub_text

MAX_DEEDS = 6


class ActionTaken(NamedTuple):
    at: float | None
    text: str
    source: str
    """`controller`, `ledger`, `event` or `annotation`."""


def actions_taken(facts: JobFacts) -> list[ActionTaken]:
    """The newest first, and what holds now before all."""
    now = [*_held(facts), *_hands(facts.controller)]
    past = sorted(_past(facts), key=lambda each: -(each.at or 0.0))
    found = list(dict.fromkeys([*now, *past]))
    return found[:MAX_DEEDS]


def _held(facts: JobFacts) -> Iterator[ActionTaken]:
    pause = pause_of(facts.job, facts.kube.now)
    if pause is not None:
        yield ActionTaken(pause.until, f"paused ({pause.words or 'by hand'})", "annotation")
    halt = None if facts.book is None else facts.book.halt
    if halt is not None and (halt.until is None or halt.until > facts.kube.now):
        yield ActionTaken(halt.at, f"acts on nothing: {halt.who}: {halt.why}", "ledger")


def _hands(controller: Mapping[str, Any] | None) -> Iterator[ActionTaken]:
    hands = (controller or {}).get("hands")
    if not isinstance(hands, Mapping):
        return
    since = hands.get("since")
    at = float(since) if isinstance(since, int | float) else None
    for key in ("text", "last"):
        if hands.get(key):
            yield ActionTaken(at if key == "text" else None, str(hands[key]), "controller")


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
        yield ActionTaken(None, f"a gang restart is under way ({entry.step.id})", "ledger")
    if not entry.acts and not entry.notes:
        yield from _events(facts)


def _events(facts: JobFacts) -> Iterator[ActionTaken]:
    for each in facts.said:
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
    words: tuple[PodReport, ...]
    story: JobHistory
    report: RunReport
    checks: tuple[Made, ...]
    deeds: tuple[ActionTaken, ...]
    next_command: str
    phase: JobPhase | None
    took_seconds: float

    @property
    def exit_code(self) -> int:
        return self.report.exit_code

    @property
    def found(self) -> list[Problem]:
        """By the checks; the worst first."""
        order = list(CheckLevel)
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


def _sidecar(words: PodReport | None) -> str | None:
    """`answers`, why not, or None: it has none."""
    if words is None or (words.snapshot is None and not words.sidecar):
        return None
    return "answers" if words.snapshot is not None else words.sidecar


def _time(at: float | None) -> str | None:
    return None if at is None else iso(at) + "Z"


MAX_BYTES = 64 * 1024 * 1024
"""Before it is packed; logs come last and are left out first."""
_LOG_BYTES = 512 * 1024


def check_target(file: Path) -> None:
    """Before anything is asked: InputError where it could not be written."""
    if file.is_dir():
        raise InputError(f"{file}: is a folder; name a file in it")
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it first")


def write_bundle(report: JobReport, file: Path) -> str:
    """What is in it, in a few words. InputError where it cannot be written."""
    check_target(file)
    name = f"{report.facts.job.namespace}-{report.facts.job.name}"
    try:
        with replacing(file, mode=0o600) as out:
            return _write(report, out, name)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); check it") from error


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
    for words in report.words:
        if words.raw:
            yield f"snapshots/{words.pod.name}.json", _json(words.raw)
    for words in report.words:
        for log in words.logs:
            end = ".previous" if log.is_previous else ""
            data = (log.head[-_LOG_BYTES:] + log.tail[-_LOG_BYTES:]).decode("utf-8", "replace")
            yield f"logs/{log.pod}.{log.container}{end}.log", data


def _json(body: Any) -> str:
    return json.dumps(_masked(body), indent=2, ensure_ascii=False, default=str)


_SECRET_WORDS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL", "CREDENTIALS",
)  # fmt: skip
_NOT_SECRET = ("KEYS_PATH", "KEY_FILE")
_REMOVED = "[removed]"


def _masked(value: Any) -> Any:
    """A variable of a container is `name` and `value`, and a flag and its value are two words: no
    scrubber of texts sees them as one."""
    if isinstance(value, dict):
        return _masked_object(value)
    if isinstance(value, list | tuple):
        return [
            _REMOVED if isinstance(each, str) and index and _is_flag(value[index - 1]) else
            _masked(each)
            for index, each in enumerate(value)
        ]  # fmt: skip
    return _masked_text(value) if isinstance(value, str) else value


def _masked_object(value: dict[str, Any]) -> dict[str, Any]:
    if isinstance(value.get("value"), str) and _is_secret(str(value.get("name", ""))):
        return {**value, "value": _REMOVED}
    return {
        key: _REMOVED if isinstance(each, str) and key.isupper() and _is_secret(key) else
        _masked(each)
        for key, each in value.items()
        if key != "managedFields"
    }  # fmt: skip


def _masked_text(text: str) -> str:
    """An annotation may hold the whole manifest once more, as JSON."""
    if not text.startswith("{"):
        return text
    try:
        return json.dumps(_masked(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _is_flag(word: Any) -> bool:
    return isinstance(word, str) and word.startswith("--") and "=" not in word and _is_secret(word)


def _is_secret(name: str) -> bool:
    """What the evidence of a pod leaves out, and more, for a bundle goes to others: any word of the
    name counts, not the last alone. A TOKENIZER is none, and neither are max-tokens."""
    name = name.lstrip("-").upper().replace("-", "_")
    has_word = any(each.endswith(_SECRET_WORDS) for each in name.split("_"))
    return name not in _NOT_SECRET and (has_word or is_secret_name(name))
