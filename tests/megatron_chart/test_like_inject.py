# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A watched chart is the same job as an unwatched one that went through `mwatch inject`."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import yaml

from mwatch import __version__
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text
from support.repository.chart_renders import (
    MEGATRON,
    only,
    rendered,
    rendered_text,
    sets,
    values_file,
)
from support.repository.manifest_files import objects_in
from support.runs.megatron_runs import OPTIONS, words_for

INJECTED = "mwatch.dev/injected"
CASES: dict[str, list[str]] = {
    "defaults": [],
    "aks": values_file("aks"),
    "eks": words_for("eks", "7.5B"),
    "hyperpod": values_file("hyperpod"),
    **{
        name: OPTIONS[name]
        for name in (
            "act",
            "native sidecar",
            "copied wrapper",
            "guaranteed",
            "user",
            "exit codes",
            "none",
            "limits",
        )
    },
    "native, copied and acting": sets(
        "mwatch.sidecar=native", "mwatch.wrapper=image", "mwatch.mode=act"
    ),
    "own grace": sets("mwatch.mode=act", "resources.gracePeriodSeconds=900"),
    "own folder": sets("storage.checkpoints.path=/checkpoints/team/gpt"),
}


def wish_of(words: list[str]) -> InjectRequest:
    """What a user of inject would have asked for."""
    text = " ".join(words)
    form: Literal["container", "native"] = "native" if "sidecar=native" in text else "container"
    wrapper: Literal["configmap", "image"] = "image" if "wrapper=image" in text else "configmap"
    mode: Literal["act", "observe"] = "act" if "mwatch.mode=act" in text else "observe"
    return InjectRequest(f"mwatch:{__version__}", form, mode, wrapper=wrapper)


@pytest.mark.parametrize("case", CASES)
def test_the_chart_does_what_inject_would(case: str) -> None:
    words = CASES[case]
    watched = only(rendered(MEGATRON, *words), "PyTorchJob")
    # A restart policy that only a wrapper allows is refused without one, so it comes afterwards.
    bare = [each.replace("restartPolicy=ExitCode", "restartPolicy=Always") for each in words]
    text = rendered_text(MEGATRON, *bare, *sets("mwatch.enabled=false"))
    text = text.replace("restartPolicy: Always", _policy(watched))
    result = inject_text(text, "chart", wish_of(words))
    assert result.notes == ()
    injected = only(objects_in(result.text), "PyTorchJob")
    del injected["metadata"]["annotations"][INJECTED]  # the note for uninject
    assert _plain(watched) == _plain(injected)
    assert _meeting_place(rendered(MEGATRON, *words)) == _meeting_place(objects_in(result.text))


def _meeting_place(objects: list[Any]) -> list[Any]:
    """The Service of the first pod, without the note for uninject."""
    found = [each for each in objects if "publishNotReadyAddresses" in each.get("spec", {})]
    for each in found:
        each["metadata"].pop("annotations", None)
    return [_plain(each) for each in found]


def test_a_job_of_several_pods_has_the_service_at_which_they_meet() -> None:
    def names(*words: str) -> list[str]:
        found = _meeting_place(rendered(MEGATRON, *sets("training.nodes=2", *words)))
        return [str(each["metadata"]["name"]) for each in found]

    assert [each.endswith("-master-0") for each in names()] == [True]
    assert names("mwatch.sidecar=native") == names("mwatch.enabled=false") == []


def _policy(job: dict[str, Any]) -> str:
    return f"restartPolicy: {job['spec']['pytorchReplicaSpecs']['Master']['restartPolicy']}"


def _plain(tree: Any) -> Any:
    """Without what only the reader of round trips knows (quotes, comments)."""
    return yaml.safe_load(yaml.safe_dump(tree))


def test_the_comparison_sees_a_difference() -> None:
    watched = only(rendered(MEGATRON), "PyTorchJob")
    text = rendered_text(MEGATRON, *sets("mwatch.enabled=false"))
    other = inject_text(text, "chart", InjectRequest("mwatch:other", "container", "observe"))
    injected = only(objects_in(other.text), "PyTorchJob")
    del injected["metadata"]["annotations"][INJECTED]
    assert _plain(watched) != _plain(injected)


def test_the_wrapper_reads_the_checkpoint_folder_and_may_edit_the_arguments() -> None:
    from mwatch_trainer.command.run_facts import look

    job = only(rendered(MEGATRON, *values_file("aks"), *OPTIONS["act"]), "PyTorchJob")
    container = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    command = [*container["command"], *container["args"]]
    after = command[command.index("--") + 1 :]
    environment = {"PET_NODE_RANK": "1", "PET_NNODES": "2"}
    run = look(after, environment)
    assert run.save == "/checkpoints/gpt"
    assert run.resumes_itself
    assert run.obstacle is None
    assert (run.place.node_rank, run.place.nnodes) == (1, 2)
