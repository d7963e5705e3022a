# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Over many manifests: uninject gives the original back, and injecting twice is injecting once."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mwatch.errors import InputError
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text, uninject_text
from support.repository.manifest_files import NATIVE, PLAIN, objects_in

PHASES = (Phase.explicit, Phase.generate)  # a manifest takes long to make smaller
WORDS = st.text("abz-_./:{}#'\"\\ $%@!&*?|>~,[]0\nä", min_size=1, max_size=12).filter(
    lambda word: "{{" not in word and "$_" not in word  # placeholders, which are refused
)
NAMES = st.text("abcxyz", min_size=1, max_size=6).filter(lambda name: name != "mwatch")
LABELS = st.dictionaries(NAMES, WORDS, max_size=2)
EXTRAS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["nodeSelector", "hostNetwork", "priorityClassName", "tolerations"]),
    st.one_of(st.booleans(), st.integers(), st.just([]), st.just({})),
    max_size=2,
)


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "image": "i"}
    made["command"] = draw(st.sampled_from([["torchrun", "train.py"], ["bash", "-c"], ["python"]]))
    if draw(st.booleans()):
        made["args"] = draw(st.lists(WORDS.map(lambda word: word.replace("$", "")), max_size=3))
    if draw(st.booleans()):
        variables = draw(st.dictionaries(NAMES, WORDS, max_size=2))
        made["env"] = [{"name": key, "value": f"v{text}"} for key, text in variables.items()]
    if draw(st.booleans()):
        made["volumeMounts"] = draw(st.sampled_from([[], [{"name": "d", "mountPath": "/d"}]]))
    return made


@st.composite
def pods(draw: st.DrawFn, trainer: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [draw(containers(trainer))], **draw(EXTRAS)}
    if draw(st.booleans()):
        spec["containers"].append({"name": "other", "image": "i", "command": ["sleep"]})
        spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 8}}
    if draw(st.booleans()):
        spec["volumes"] = draw(st.sampled_from([[], [{"name": "d", "emptyDir": {}}]]))
    if draw(st.booleans()):
        spec["initContainers"] = draw(st.sampled_from([[], [{"name": "first", "image": "i"}]]))
    if draw(st.booleans()):
        spec["terminationGracePeriodSeconds"] = draw(st.integers(0, 500))
    template: dict[str, Any] = {"spec": spec}
    if draw(st.booleans()):
        template["metadata"] = draw(st.sampled_from([{}, {"labels": {}}, {"labels": {"a": "b"}}]))
    return template


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["PyTorchJob", "JobSet", "Job", "StatefulSet"]))
    metadata: dict[str, Any] = {"name": "gpt"}
    spec: dict[str, Any]
    for key in ("labels", "annotations"):
        if draw(st.booleans()):
            metadata[key] = draw(LABELS)
    if kind == "PyTorchJob":
        roles = draw(st.sampled_from([["Worker"], ["Master", "Worker"]]))
        replicas = {role: {"replicas": 1, "template": draw(pods("pytorch"))} for role in roles}
        version, spec = "kubeflow.org/v1", {"pytorchReplicaSpecs": replicas}
    elif kind == "JobSet":
        node = {"name": "node", "template": {"spec": {"template": draw(pods("main"))}}}
        version, spec = "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": [node]}
    else:
        version = "batch/v1" if kind == "Job" else "apps/v1"
        spec = {"template": draw(pods("main"))}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.timeout(120)  # each manifest is read and printed a dozen times
@given(
    st.lists(jobs(), min_size=1, max_size=2),
    st.sampled_from([NATIVE, PLAIN, NATIVE._replace(mode="act", checkpoints="/d/run")]),
    st.sampled_from([True, False, None]),
    st.integers(2, 5),
)
@settings(max_examples=10, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck))
def test_any_manifest_comes_back(
    made: list[dict[str, Any]], wish: InjectRequest, flow: bool | None, indent: int
) -> None:
    other = "# first\nkind:   ConfigMap\ndata: {a:    b}   # odd, and kept\n---\n"
    text = other + yaml.safe_dump_all(
        made, default_flow_style=flow, indent=indent, sort_keys=False, allow_unicode=True
    )
    wish = wish._replace(only=("gpt",))
    once = inject_text(text, "f", wish).text
    assert once.startswith(other)
    assert inject_text(once, "f", wish).text == once
    back = uninject_text(once, "f").text
    assert back.startswith(other)
    assert objects_in(back) == objects_in(text)


@given(st.text("{}[]:-#&*!|>'\"%@` \n\tab0$", max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_is_a_traceback(text: str) -> None:
    try:
        inject_text("apiVersion: batch/v1\nkind: Job\n" + text, "f", NATIVE)
    except InputError as error:
        assert str(error).startswith("f:")
