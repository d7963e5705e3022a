# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All that was seen of a live job, in the form that the checks look at.

The trainer's arguments are those of its command line where a wrapper tells it, besides them those
that it printed, and then those of the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from mwatch.decide.quiet import ended_as_asked
from mwatch.diagnose.cluster_facts import JobFacts
from mwatch.diagnose.pod_reports import PodReport
from mwatch.diagnose.timeline import JobHistory
from mwatch.manifests import shell_text
from mwatch.manifests.containers import environment_of, trainer_of
from mwatch.manifests.facts import workload_of
from mwatch.model.checks import running as names
from mwatch.model.checks.running import JobProgress, Running
from mwatch.model.checks.workload import Workload
from mwatch.model.event import Arguments
from mwatch.model.job import Job
from mwatch.model.kube.fields import mapping
from mwatch.model.snapshot.pod import PodFacts

_RENDEZVOUS = ("RDZV_ID", "PET_RDZV_ID")
_FIELDS = {
    "tensor_parallel": "--tensor-model-parallel-size",
    "pipeline_parallel": "--pipeline-model-parallel-size",
    "context_parallel": "--context-parallel-size",
    "save": "--save",
    "load": "--load",
    "save_interval": "--save-interval",
    "train_iters": "--train-iters",
    "global_batch_size": "--global-batch-size",
    "micro_batch_size": "--micro-batch-size",
    "log_interval": "--log-interval",
}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RANDOM = "started_from_random"
_FEW = 2


def running_of(facts: JobFacts, words: Sequence[PodReport], story: JobHistory) -> Running:
    argv = next((each for each in map(_argv, words) if each), ())
    given = {**_printed(story.arguments), **(shell_text.arguments(argv, {}) if argv else {})}
    return Running(
        facts=facts.kube,
        workload=_workload(facts, given),
        applied=_applied(facts),
        progress=_progress(words, story),
        rendezvous=_rendezvous(facts, words),
        pods=_pods(words),
        stored=story.stored,
        arguments=given,
        lists=_lists(argv),
        claims=facts.claims,
        services=facts.services,
        kept=facts.kept,
        unseen=_unseen(facts, words),
    )


def _argv(words: PodReport) -> tuple[str, ...]:
    wrapper = words.snapshot.wrapper if words.snapshot is not None else None
    return () if wrapper is None else wrapper.argv


def _printed(block: Arguments | None) -> dict[str, str | None]:
    """As flags; a switch that is off is not given."""
    if block is None:
        return {}
    values = {flag: getattr(block, name) for name, flag in _FIELDS.items()}
    for name, value in block.extra.items():
        values["--" + name.replace("_", "-")] = value
    found: dict[str, str | None] = {}
    for flag, value in values.items():
        if value is not None and value is not False and value != "None":
            found[flag] = None if value is True else str(value)
    return found


def _workload(facts: JobFacts, given: Mapping[str, str | None]) -> Workload:
    """What runs is truer than what a script in the manifest seems to say."""
    found = workload_of(facts.found.body, facts.others)
    if found is None:  # a job of a kind that is known, and so never
        raise ValueError(f"{facts.job.kind.value} is not a training job")
    known = {flag: value for flag, value in given.items() if value is not None}
    replicas = tuple(
        replace(each, arguments={**each.arguments, **known}) if each.container is not None else each
        for each in found.replicas
    )
    return replace(found, replicas=replicas)


def _applied(facts: JobFacts) -> Workload | None:
    text = facts.job.annotations.get(_LAST_APPLIED, "")
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return workload_of(content) if isinstance(content, dict) else None


def _lists(argv: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            if flag.endswith("-data-path"):
                found[flag] = [value] if value else []
        elif flag in found:
            found[flag].append(word)
    return {name: tuple(values) for name, values in found.items()}


def _progress(words: Sequence[PodReport], story: JobHistory) -> JobProgress:
    job = story.engine.job
    attempt, layout = job.attempt, job.layout
    ats = [step.at for step in attempt.steps][-20:]
    gaps = [after - before for before, after in pairwise(ats) if after > before]
    seconds = [step.seconds for step in attempt.steps if step.seconds][-20:]
    printing = [each.name for each in job.streams.values() if each.prints_iterations]
    return JobProgress(
        iteration=attempt.iteration,
        total_iterations=layout.total_iterations,
        line_at=attempt.line_at,
        line_seconds=median(gaps) if len(gaps) >= _FEW else None,
        line_pods=tuple(printing),
        read_pods=sum(each.has_told for each in words),
        step_seconds=median(seconds) if seconds else None,
        save_interval=layout.save_interval,
        world_size=layout.world_size,
        attempts=len(job.past) + 1,
        is_done=attempt.is_finished,
        asked_to_end=ended_as_asked(job),
        random_start=_random(story, job),
    )


def _random(story: JobHistory, job: Job) -> str:
    for each in story.assessment.findings:
        if each.detector == _RANDOM:
            return next((one.text for one in each.evidence), each.summary)[:200]
    return "no checkpoint was loaded" if job.attempt.load == "random" else ""


def _rendezvous(facts: JobFacts, words: Sequence[PodReport]) -> dict[str, str]:
    """Of pods that take part; the one that is being replaced may have an old one."""
    found: dict[str, str] = {}
    going = {pod.name for pod in facts.kube.pods if pod.is_deleting or pod.is_over}
    for name, body in facts.bodies.items():
        container = next((each.container for each in words if each.pod.name == name), None)
        trainer = trainer_of(mapping(body, "spec"), container)
        values = environment_of(trainer) if trainer is not None else {}
        value = next((values[each] for each in _RENDEZVOUS if each in values), None)
        if value is not None and name not in going:
            found[name] = value
    return found


def _pods(words: Iterable[PodReport]) -> dict[str, PodFacts]:
    return {
        each.pod.name: each.snapshot.pod
        for each in words
        if each.snapshot is not None and each.snapshot.pod is not None
    }


def _unseen(facts: JobFacts, words: Sequence[PodReport]) -> dict[str, str]:
    found = dict(facts.unseen)
    if not any(each.has_told for each in words):
        problems = [each.problem for each in words if each.problem]
        found[names.LOGS] = problems[0] if problems else "no pod has begun"
    if not any(each.snapshot is not None for each in words):
        refused = [each.sidecar for each in words if each.sidecar]
        if refused:
            found[names.VOLUME] = f"no sidecar answers: {refused[0]}"
    return found
