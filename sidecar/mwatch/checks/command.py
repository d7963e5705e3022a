# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shells around the trainer: exit codes that they hide, and signals that they keep."""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.checks.pods import training
from mwatch.checks.shell import Statement, has_pipefail, statements, stops_at_errors
from mwatch.model.check import Check, Level, Seen
from mwatch.model.workload import Path, Replica, Workload

_DEFAULT_GRACE = 30
_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_HIDING = {"true", ":", "echo"}


def _masked(workload: Workload) -> Iterator[Seen]:
    for each in training(workload):
        path = (*each.container_path, "command")
        for script in each.scripts:
            found = statements(script)
            for index, statement in enumerate(found):
                if statement.launches:
                    yield from _after(path, each, script, statement, found[index + 1 :])


def _after(
    path: Path, replica: Replica, script: str, launch: Statement, rest: list[Statement]
) -> Iterator[Seen]:
    if launch.joint in ("|", "|&") and not has_pipefail(script):
        sink = rest[0].words[0] if rest else "another command"
        yield Seen(
            path,
            f"{replica.name}: the exit code of training is lost in '| {sink}': a crash is reported "
            "as Succeeded",
            "begin the script with: set -o pipefail",
        )
    elif launch.joint == "||" and rest and rest[0].words[0] in _HIDING:
        yield Seen(
            path,
            f"{replica.name}: '|| {rest[0].words[0]}' hides the exit code of training",
            "take it away",
        )
    elif launch.joint == ";" and rest and not stops_at_errors(script) and not _keeps_code(rest):
        yield Seen(
            path,
            f"{replica.name}: '{rest[-1].words[0]}' comes after training and sets the exit code",
            "begin the script with: set -e",
        )


def _keeps_code(rest: list[Statement]) -> bool:
    """The code is taken down, and given back; or training is not the end of the story."""
    text = " ".join(each.text for each in rest)
    return "$?" in text or any(each.words[0] == "exec" or each.launches for each in rest)


def _first_process(workload: Workload) -> Iterator[Seen]:
    for each in training(workload):
        if each.is_wrapped or not each.words or each.words[0].rsplit("/", 1)[-1] not in _SHELLS:
            continue
        last = statements(each.scripts[0])[-1:] if each.scripts else []
        if last and last[0].words[0] == "exec":
            continue
        yield Seen(
            (*each.container_path, "command"),
            f"{each.name}: the shell is process 1 and drops SIGTERM: a deleted pod waits for the "
            "whole grace period, is killed, and saves nothing",
            "begin the last command with exec, or use mwatch inject",
        )


def _grace(workload: Workload) -> Iterator[Seen]:
    for each in training(workload):
        grace = each.pod.get("terminationGracePeriodSeconds", _DEFAULT_GRACE)
        saves = "--exit-signal-handler" in each.arguments
        if saves and isinstance(grace, int) and grace <= _DEFAULT_GRACE:
            yield Seen(
                (*each.path, "spec", "terminationGracePeriodSeconds"),
                f"{each.name} saves on SIGTERM, and has {grace} s for a step and a save",
                "set terminationGracePeriodSeconds above both, 300 for a large model",
            )


CHECKS = (
    Check("exit-code", Level.ERROR, "the exit code of training is the container's", _masked),
    Check("first-process", Level.WARNING, "SIGTERM reaches the trainer", _first_process),
    Check("grace-period", Level.WARNING, "there is time to save on SIGTERM", _grace),
)
