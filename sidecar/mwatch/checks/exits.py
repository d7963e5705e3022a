# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of how training ends and restarts: exit codes, signals, restart policies.

Shell scripts are analysed without running them. Loops, functions, conditions and here-documents are
read as plain statements, so a hit is a reason to look, and no hit proves nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mwatch.checks.pods import at, has_arguments, mapping, training
from mwatch.model.checks import Check, CheckHit, CheckLevel, Path, Replica, Workload

_MAX = 200_000
_JOINTS = frozenset({";", "&&", "||", "|", "&", "|&", "\n"})
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?\n\s*\2(?=\n|\Z)", re.S)
_REDIRECTION = re.compile(r"\d*[<>]&[\d-]+|&>>?")  # ampersands that are not separators of commands
_LAUNCHER = re.compile(
    r"(?:^|[\s/\"'])(?:torchrun|torch\.distributed\.(?:run|launch)|composer|deepspeed|ft_launcher"
    r"|accelerate|llmfoundry|\S*pretrain_\w+\.py|mwatch_gpt)(?=[\s\"']|$)"
)
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_DEFAULT_GRACE = 30
_HIDING = {"true", ":", "echo"}
_TRAP = re.compile(r"\btrap\b[^\n]*\b(?:SIG)?TERM\b")
_OPENING = frozenset({"if", "while", "until", "for", "case"})
_CLOSING = frozenset({"fi", "done", "esac"})
_BEFORE = frozenset({"then", "else", "do", "{", "!", "time"})
_KEYWORDS = _CLOSING | {"then", "else", "do", "}", ")"}
_SPEC_KEYS = {"PyTorchJob": {"runPolicy", "elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs"}}
_RUN_POLICY = frozenset({
    "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
    "suspend", "schedulingPolicy", "managedBy",
})  # fmt: skip
_AUTO_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
_QUEUE = "kueue.x-k8s.io/queue-name"
_MODE = "mwatch.dev/mode"


class ShellStatement(NamedTuple):
    words: tuple[str, ...]
    joint: str  # separator after it: `;`, `&&`, `||`, `|`, `&`, or empty

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def launches(self) -> bool:
        """Whether it starts training, or a script that may start it."""
        if not self.words or self.words[0] in ("echo", "export", "which", "command"):
            return False
        first = self.words[1:] if self.words[0] == "exec" else self.words
        has_file = any(each.endswith(".sh") for each in first[1:])
        is_script = first and base_name(first[0]) in SHELLS and has_file
        return bool(_LAUNCHER.search(self.text)) or bool(is_script)


def base_name(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def statements(script: str) -> list[ShellStatement]:
    text = _HEREDOC.sub("\n", script[:_MAX]).replace("\\\n", " ")
    text = re.sub(r"(?m)(^|\s)#[^\n]*", r"\1", text)
    text = _REDIRECTION.sub(" ", text)
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return []
    found: list[ShellStatement] = []
    open_words: list[str] = []
    for word in words:
        is_end = word != "" and set(word) <= {";"}
        if word not in _JOINTS and not is_end:
            open_words.append(word)
        elif open_words:
            found.append(ShellStatement(tuple(open_words), ";" if is_end else word))
            open_words = []
    return [*found, ShellStatement(tuple(open_words), "")] if open_words else found


def stops_at_errors(script: str) -> bool:
    pattern = r"(?m)^\s*set\s+(?:-\w+\s+)*-\w*e|set -o errexit|^#!.*\s-\w*e"
    return re.search(pattern, script) is not None


def has_pipefail(script: str) -> bool:
    return "pipefail" in script or "PIPESTATUS" in script


def _masked(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        path = (*each.container_path, "command")
        for script in each.scripts:
            found = statements(script)
            depth = 0
            for index, statement in enumerate(found):
                depth = max(0, depth + _opened(statement))
                if statement.launches:
                    rest = found[index + 1 :]
                    yield from _after(path, each, script, statement, rest, is_inner=depth > 0)


def _opened(statement: ShellStatement) -> int:
    """Number of conditions, loops and functions that it begins, minus those that it ends."""
    words = list(statement.words)
    braces = sum(each == "{" or each.endswith("(){") for each in words) - words.count("}")
    while len(words) > 1 and words[0] in _BEFORE:
        del words[0]
    return braces + int(words[0] in _OPENING) - int(words[0] in _CLOSING)


def _after(
    path: Path,
    replica: Replica,
    script: str,
    launch: ShellStatement,
    rest: list[ShellStatement],
    *,
    is_inner: bool,
) -> Iterator[CheckHit]:
    """`is_inner`: inside a function or condition, so the next statement may not run next."""
    if launch.joint in ("|", "|&") and not has_pipefail(script):
        sink = rest[0].words[0] if rest else "another command"
        yield CheckHit(
            path,
            f"{replica.name}: the exit code of training is lost in '| {sink}': a crash is reported "
            "as Succeeded",
            "begin the script with: set -o pipefail",
        )
    elif launch.joint == "||" and rest and rest[0].words[0] in _HIDING:
        what = f"{replica.name}: '|| {rest[0].words[0]}' hides the exit code of training"
        yield CheckHit(path, what, "take it away")
    elif is_inner or launch.joint != ";" or not rest:
        return
    elif not stops_at_errors(script) and not _keeps_code(rest):
        last = "more" if rest[-1].words[0] in _KEYWORDS else f"'{rest[-1].words[0]}'"
        what = f"{replica.name}: {last} comes after training and sets the exit code"
        yield CheckHit(path, what, "begin the script with: set -e")


def _keeps_code(rest: list[ShellStatement]) -> bool:
    """Whether the exit code is stored and returned, or training is started again."""
    text = " ".join(each.text for each in rest)
    return "$?" in text or any(each.words[0] == "exec" or each.launches for each in rest)


def _first_process(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        if each.is_wrapped or not each.words or base_name(each.words[0]) not in SHELLS:
            continue
        found = statements(each.scripts[0]) if each.scripts else []
        if found and (found[-1].words[0] == "exec" or _TRAP.search(each.scripts[0])):
            continue
        gives_way = base_name(each.words[0]) == "bash" and each.words[1] == "-c" and _is_plain(each)
        if gives_way and len(found) == 1:
            continue  # bash replaces itself with a single command
        how = "may stay process 1 (bash before 5.1 does)" if gives_way else "is process 1"
        yield CheckHit(
            (*each.container_path, "command"),
            f"{each.name}: the shell {how} and drops SIGTERM: a deleted pod waits for the "
            "whole grace period, is killed, and saves nothing",
            "begin the last command with exec, or use mwatch inject",
        )


def _is_plain(replica: Replica) -> bool:
    """Whether the last statement is one command other than a shell, without pipes, redirections or
    tests."""
    text = replica.scripts[0] if replica.scripts else ""
    last = statements(text)[-1:]
    if not last or last[0].joint not in ("", ";") or last[0].words[0] in _KEYWORDS:
        return False
    line = text.rstrip().replace("\\\n", " ").rsplit("\n", 1)[-1]
    is_shell = base_name(last[0].words[0]) in (*SHELLS, "source", ".")
    return not is_shell and not set(line) & set("<>|(){}")


def _grace(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        grace = each.pod.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
        saves = "--exit-signal-handler" in each.arguments
        if saves and isinstance(grace, int) and grace <= _DEFAULT_GRACE:
            what = f"{each.name} saves on SIGTERM, and has {grace} s for a step and a save"
            fix = "set terminationGracePeriodSeconds above both, 300 for a large model"
            yield CheckHit((*each.path, "spec", "terminationGracePeriodSeconds"), what, fix)


COMMAND_CHECKS = (
    Check("exit-code", CheckLevel.ERROR, "the exit code of training is the container's", _masked),
    Check("first-process", CheckLevel.WARNING, "SIGTERM reaches the trainer", _first_process),
    Check("grace-period", CheckLevel.WARNING, "there is time to save on SIGTERM", _grace),
)


def _backoff(workload: Workload) -> Iterator[CheckHit]:
    limit, pods = at(workload.spec, "runPolicy", "backoffLimit"), workload.pods
    if workload.kind == "PyTorchJob" and isinstance(limit, int) and pods and limit < pods:
        yield CheckHit(
            ("spec", "runPolicy", "backoffLimit"),
            f"backoffLimit {limit} is less than the {pods} pods: restarts are summed over all of "
            "them, so one restart of the gang fails the job",
            "leave it out, or give pods x restarts",
        )


def _restart_policy(workload: Workload) -> Iterator[CheckHit]:
    if workload.kind != "PyTorchJob":
        return
    for each in training(workload):
        path = (*each.path[:-1], "restartPolicy")
        if each.is_wrapped:
            continue
        if each.restart_policy == "ExitCode":
            yield CheckHit(
                path,
                f"{each.name} has restartPolicy ExitCode, but torchrun exits 1 for every failure "
                "and also on SIGTERM: the job fails at the first one",
                "use OnFailure, or mwatch inject, whose wrapper distinguishes exit codes",
            )
        elif each.restart_policy == "Never":
            yield CheckHit(
                path,
                f"{each.name} has restartPolicy Never: the first failure, or a deleted pod, "
                "fails the job",
                "use OnFailure",
            )


def _misplaced(workload: Workload) -> Iterator[CheckHit]:
    """The API server silently drops fields it does not know."""
    known = _SPEC_KEYS.get(workload.kind)
    for key in workload.spec if known else ():
        if key not in (known or ()):
            fix = f"take it away: a {workload.kind} has no such field there"
            fix = f"put it at spec.runPolicy.{key}" if key in _RUN_POLICY else fix
            yield CheckHit(("spec", str(key)), f"{key} at spec is silently dropped", fix)


def _auto_resume(workload: Workload) -> Iterator[CheckHit]:
    if str(workload.annotations.get(_AUTO_RESUME, "")).lower() != "true":
        return
    if workload.annotations.get(_MODE) == "act":
        what = "HyperPod's auto-resume and mwatch may both restart this job"
        fix = f"take one away: this annotation, or {_MODE}: observe"
        yield CheckHit(("metadata", "annotations", _AUTO_RESUME), what, fix)


def _queue(workload: Workload) -> Iterator[CheckHit]:
    if workload.labels.get(_QUEUE):
        what = "Kueue owns the suspend field of this job"
        fix = "nothing: mwatch restarts it by deleting pods, not by suspending it"
        yield CheckHit(("metadata", "labels", _QUEUE), what, fix)


def _elastic(workload: Workload) -> Iterator[CheckHit]:
    policy = workload.spec.get("elasticPolicy")
    if not isinstance(policy, Mapping):
        return
    path = ("spec", "elasticPolicy")
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    replicas = training(workload)
    reasons = ["a Megatron layout has one size"] if any(map(has_arguments, replicas)) else []
    if not any(each.name == "Master" for each in workload.replicas):
        reasons.append("the first worker that succeeds ends the job")
    if least != most and reasons:
        what = f"elasticPolicy allows {least} to {most} replicas, but {' and '.join(reasons)}"
        yield CheckHit(path, what, "take elasticPolicy away, or make both equal")
    if isinstance(policy.get("maxRestarts"), int) and policy["maxRestarts"] > 0:
        yield CheckHit(
            (*path, "maxRestarts"),
            f"torchrun may restart its ranks {policy['maxRestarts']} times inside the container, "
            "which Kubernetes does not notice",
            "set it to 0 where mwatch acts",
            CheckLevel.INFO,
        )


def _gang(workload: Workload) -> Iterator[CheckHit]:
    if workload.kind != "JobSet" or workload.pods == 1:
        return
    policy = mapping(workload.spec.get("failurePolicy"))
    if policy.get("restartStrategy") == "InPlaceRestart":
        return  # the pods restart themselves, all together
    alone = [each for each in training(workload) if _retries_alone(workload, each)]
    for each in alone:
        yield CheckHit(
            each.path,
            f"{each.name} has restartPolicy {each.restart_policy or 'OnFailure'} and "
            f"backoffLimit {_limit_of(workload, each)}: a pod that fails is retried alone, "
            "without its gang",
            "use restartPolicy: Never, backoffLimit: 0 and a failurePolicy of the JobSet",
        )
    if not alone and not policy.get("maxRestarts") and not policy.get("rules"):
        what = "no failurePolicy lets the JobSet restart: the first pod that fails ends it"
        yield CheckHit(("spec", "failurePolicy"), what, "give spec.failurePolicy.maxRestarts")


def _retries_alone(workload: Workload, replica: Replica) -> bool:
    return replica.restart_policy != "Never" or _limit_of(workload, replica) != 0


def _limit_of(workload: Workload, replica: Replica) -> Any:
    job: Any = workload.content
    for key in replica.path[:-1]:
        job = job[key]
    return mapping(job).get("backoffLimit", 6)


RESTART_CHECKS = (
    Check("backoff-limit", CheckLevel.ERROR, "backoffLimit leaves room for the gang", _backoff),
    Check(
        "restart-policy", CheckLevel.WARNING, "the operator restarts a failed pod", _restart_policy
    ),
    Check("misplaced-policy", CheckLevel.ERROR, "no policy stands at the wrong level", _misplaced),
    Check("auto-resume", CheckLevel.WARNING, "one actor alone restarts the job", _auto_resume),
    Check("queue", CheckLevel.INFO, "the job is Kueue's", _queue),
    Check("elastic", CheckLevel.WARNING, "the gang has one size", _elastic),
    Check("jobset-gang", CheckLevel.WARNING, "a JobSet restarts its gang as one", _gang),
)
