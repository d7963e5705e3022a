# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The frozen list of commands, arguments and flags.

A new flag is a promise. Whoever adds one adds it here, to the README and to the changelog.
"""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.main import get_command

from mwatch.cli.program import program
from support.repository.readme_examples import README, calls

HELP = {"-h", "--help"}
RECORDED = HELP | {"DIR|LOG...|-", "--json", "--checkpoints", "--until", "--policy", "--catalogue"}
MANIFEST = {"-f", "--file", "--only", "--diff", "-o", "--out", "--in-place", "--json"}
CLUSTER = {"--namespace", "-n", "--kubeconfig", "--context"}
SURFACE = {
    "demo": HELP
    | {"--real", "--stand-in"}
    | {"--quick", "--runs", "--port", "--stay", "--plain", "--json"},
    "run": HELP
    | {"-- CMD...", "--act", "--policy", "--name", "--runs", "--checkpoints", "--port", "--grace"}
    | {"--plain", "--quiet", "-q", "--json", "--no-probe", "--no-page", "--otlp-endpoint"}
    | {"--tensorboard-notes", "--notify", "--adopt"},
    "ui": HELP
    | {"RUN|JOB", "--namespace", "-n", "--kubeconfig", "--context"}
    | {"--runs", "--port", "--no-browser"},
    "sidecar": HELP
    | {"--dir", "--name", "--pod", "--pod-uid", "--namespace", "--node", "--host", "--port"}
    | {"--checkpoints", "--policy", "--config", "--otlp-endpoint", "--tensorboard"}
    | {"--tensorboard-notes", "--token-file", "--evidence", "--mode", "--json"}
    | {"--until-final", "--no-page"},
    "controller": HELP
    | {"-n", "--namespace", "--kubeconfig", "--context", "--port", "--host", "--policy", "--fleet"}
    | {"--evidence", "--poll", "--once", "--json", "--no-page", "--notify", "--external-url"},
    "inject": HELP
    | MANIFEST
    | {"--image", "--sidecar", "--mode", "--controller", "--container", "--checkpoints"}
    | {"--python", "--wrapper", "--namespace", "-n", "--kubeconfig", "--context"},
    "uninject": HELP | MANIFEST,
    "diagnose": (RECORDED - {"DIR|LOG...|-"})
    | CLUSTER
    | {"JOB|DIR|LOG...|-", "-f", "--file", "--bundle"},
    "doctor": HELP | CLUSTER | {"JOB", "--pull", "--prometheus", "--json"},
    "status": HELP | CLUSTER | {"-A", "--all-namespaces", "--json"},
    "top": HELP
    | CLUSTER
    | {"-A", "--all-namespaces", "--runs", "--every", "--once", "--json"}
    | {"--count"},  # hidden: removed in 0.3
    "pause": HELP | CLUSTER | {"JOB", "--all", "--for", "--reason", "--json"},
    "resume": HELP | CLUSTER | {"JOB", "--all", "--reason", "--json"},
    "restart": HELP | CLUSTER | {"JOB", "--from", "--dry-run", "--reason", "--json"},
    "stop": HELP | CLUSTER | {"JOB|RUN", "--yes", "--runs", "--reason", "--json"},
    "mode": HELP | CLUSTER | {"JOB", "observe|act", "--reason", "--json"},
    "replay": RECORDED | {"--out", "-o"},
    "report": (RECORDED - {"DIR|LOG...|-"})
    | {"JOB|RUN|DIR|LOG...|-", "--namespace", "-n", "--kubeconfig", "--context"}
    | {"--out", "-o", "--title", "--force", "--exit-code"},
    "parse": HELP | {"FILE...|-", "--follow", "--flavour", "--since-line", "--catalogue"},
    "plan": HELP
    | {"MODEL", "--layers", "--hidden", "--heads", "--seq", "--vocab", "--max-positions"}
    | {"--ffn", "--groups", "--head-size", "--llama", "--experts", "--top-k", "--moe-ffn"}
    | {"--shared-ffn", "--moe-every", "--instance", "--nodes", "--gpus", "--gpu-memory"}
    | {"--tp", "--pp", "--cp", "--ep", "--vpp", "--micro-batch", "--global-batch", "--recompute"}
    | {"--sequence-parallel", "--no-sequence-parallel", "--distributed-optimizer"}
    | {"--no-distributed-optimizer", "--flash-attention", "--no-flash-attention"}
    | {"--storage", "--failure-rate", "--mtbf", "--restart-minutes", "--step-seconds", "--mfu"}
    | {"--json", "--values", "--list", "--first-stage-layers", "--last-stage-layers"}
    # Hidden: refused, with the reason.
    | {"--multi-latent-attention", "--mtp-num-layers", "--fp8-param-gather"}
    | {"--pipeline-model-parallel-layout"},
    "completion": HELP | {"bash|zsh|fish"},
    "checkpoints": HELP | CLUSTER | {"DIR|JOB", "--json"},
    "rollback": HELP | {"DIR", "--to", "--reason", "--dry-run", "--json"},
    "runbook": HELP | {"NAME"},
    "export": HELP | {"KIND", "DIR", "--force"},
    "faults": HELP | {"FAULT", "--json", "--role", "--blame", "--catalogue"},
}
# Typer brings its own copy of click, whose types have no public name.
PROGRAM: Any = get_command(program())
CONTEXT = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)


def surface_of(command: Any, context: typer.Context) -> set[str]:
    """Every long and short flag, and every argument by the name in its help."""
    names: set[str] = set()
    for parameter in command.get_params(context):
        if parameter.param_type_name == "argument":
            names.add((parameter.metavar or parameter.name.upper()).strip("[]"))
        else:
            names.update(parameter.opts + parameter.secondary_opts)
    return names


def test_there_are_these_commands_and_no_others() -> None:
    assert sorted(PROGRAM.list_commands(CONTEXT)) == sorted(SURFACE)


def test_the_flags_of_mwatch_itself() -> None:
    assert surface_of(PROGRAM, CONTEXT) == HELP | {"--version"}


@pytest.mark.parametrize("name", SURFACE)
def test_the_arguments_and_flags_of(name: str) -> None:
    command = PROGRAM.get_command(CONTEXT, name)
    context = typer.Context(command, parent=CONTEXT, info_name=name)
    assert surface_of(command, context) == SURFACE[name]


@pytest.mark.parametrize("words", calls(README.read_text("utf-8")), ids=" ".join)
def test_the_readme_uses_only_what_there_is(words: list[str]) -> None:
    name, *rest = words
    assert {word for word in rest if word.startswith("-") and word != "-"} <= SURFACE[name]
    command = PROGRAM.get_command(CONTEXT, name)
    if is_whole(rest):
        command.make_context(name, list(rest), parent=CONTEXT)


def is_whole(words: list[str]) -> bool:
    """Not only the name of a command, nor a pattern of several."""
    return bool(words) and not any("|" in word or word.isupper() for word in words)
