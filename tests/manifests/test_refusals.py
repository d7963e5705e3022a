# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A manifest that cannot be used: the error names the file, the line and the fix."""

from __future__ import annotations

import pytest

from mwatch.errors import InputError
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text, uninject_text, workloads
from support.repository.manifest_files import NATIVE, injected, text_of

JOB = text_of("hyperpod.yaml")


def line_of(text: str, part: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def refusal(text: str, wish: InjectRequest = NATIVE) -> str:
    with pytest.raises(InputError) as caught:
        inject_text(text, "job.yaml", wish)
    words = str(caught.value)
    assert "\n" not in words
    return words


def test_no_container_named_pytorch() -> None:
    text = JOB.replace("- name: pytorch", "- name: megatron")
    line = line_of(text, "containers:")
    assert refusal(text) == (
        f"job.yaml:{line}: Worker has no container named 'pytorch' (found: megatron), and the "
        "operator accepts no other; rename the one that trains"
    )


def test_no_command() -> None:
    begin, end = JOB.index("              command:"), JOB.index("              volumeMounts:")
    text = JOB[:begin] + JOB[end:]
    words = refusal(text)
    assert words.startswith(f"job.yaml:{line_of(text, '- name: pytorch')}: ")
    assert "has no command" in words and "give it a command: [torchrun, ...]" in words


def test_arguments_without_a_command_are_no_command() -> None:
    assert "has no command" in refusal(JOB.replace("              command:", "              args:"))


def test_a_command_that_is_one_text() -> None:
    begin, end = JOB.index("              command:"), JOB.index("              volumeMounts:")
    text = JOB[:begin] + "              command: torchrun train.py\n" + JOB[end:]
    words = refusal(text)
    assert words.startswith(f"job.yaml:{line_of(text, 'command: torchrun')}: ")
    assert words.endswith(
        'is one text, and Kubernetes takes a list; write ["torchrun", "train.py"]'
    )


def test_a_number_in_a_command() -> None:
    text = JOB.replace("- --nnodes=2", "- 8")
    assert "put numbers in quotes" in refusal(text)


def test_an_unknown_kind_names_the_known_ones() -> None:
    text = "# note\napiVersion: sagemaker.amazonaws.com/v1\nkind: HyperPodPyTorchJob\n"
    assert refusal(text).startswith("job.yaml:3: has no job that mwatch knows (found: HyperPodPy")


def test_a_job_of_the_same_name_in_another_group_is_unknown() -> None:
    assert "no job that mwatch knows" in refusal("apiVersion: batch.tutorial.io/v1\nkind: Job\n")


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "---\n---\n"])
def test_an_empty_file(text: str) -> None:
    assert "the file holds no object" in refusal(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 2", "replicas: {{ .Values.nodes }}"),
        ("name: megatron", 'name: "{{ .Release.Name }}"'),
        ("      restartPolicy: OnFailure", "      {{- with .Values.policy }}"),
    ],
)
def test_a_helm_template_is_to_be_rendered_first(old: str, new: str) -> None:
    text = JOB.replace(old, new)
    words = refusal(text)
    assert words.startswith(f"job.yaml:{line_of(text, '{{')}: ")
    assert "helm template" in words


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("replicas: 2", "replicas: ${NUM_NODES}"),
        ("image: aws-megatron-lm", "image: $REGISTRY/megatron"),
        ("--nnodes=2", "--nnodes=$NUM_NODES"),
        ("value: efa", "value: ${FI_PROVIDER}"),
    ],
)
def test_variables_that_envsubst_should_have_filled_in(old: str, new: str) -> None:
    text = JOB.replace(old, new)
    words = refusal(text)
    assert words.startswith(f"job.yaml:{line_of(text, '$')}: ")
    assert "envsubst" in words


def test_dollars_that_kubernetes_or_a_shell_reads_are_no_placeholders() -> None:
    fine = JOB.replace("--nnodes=2", "--nnodes=$(PET_NNODES)").replace("value: efa", "value: a$b")
    assert inject_text(fine, "f", NATIVE).jobs
    assert injected("aks.yaml").jobs


def test_a_template_in_another_object_is_none_of_our_business() -> None:
    rule = "apiVersion: v1\nkind: PrometheusRule\nspec: {text: 'at {{ $labels.pod }}'}\n---\n"
    assert inject_text(rule + JOB, "f", NATIVE).text.startswith(rule)


def test_yaml_that_is_none_names_its_line_in_the_whole_file() -> None:
    text = JOB.replace("  elasticPolicy:\n", "  elasticPolicy: [\n")
    line = int(refusal(text).split(":")[1])
    assert line_of(text, "elasticPolicy") < line <= line_of(text, "elasticPolicy") + 3
    assert "invalid YAML" in refusal(text)


def test_a_key_given_twice() -> None:
    text = JOB.replace("  namespace: kubeflow", "  name: again")
    assert "job.yaml:" in refusal(text) and "duplicate" in refusal(text)


def test_names_of_ours_that_somebody_else_has_given() -> None:
    words = refusal(
        JOB.replace(
            "- name: shmem\n              hostPath", "- name: mwatch\n              hostPath"
        )
    )
    assert "'mwatch' that inject did not put there" in words


def test_a_damaged_note_and_one_of_another_version() -> None:
    text = injected("hyperpod.yaml").text
    for changed in (
        text.replace('{"version":1', '{"version":9'),
        text.replace('{"version":1,', "{"),
    ):
        with pytest.raises(InputError) as caught:
            uninject_text(changed, "job.yaml")
        assert str(caught.value).startswith(f"job.yaml:{line_of(text, 'mwatch.dev/injected')}: ")


def test_a_job_without_a_name() -> None:
    text = JOB.replace("  name: megatron\n  namespace", "  namespace")
    assert "give it a metadata.name" in refusal(text)


def test_a_mode_that_is_none() -> None:
    text = text_of("statefulset.yaml").replace("mode: act", "mode: maybe")
    assert "it can be observe or act" in refusal(text)


def test_containers_of_which_several_may_train() -> None:
    text = text_of("statefulset.yaml").replace(", nvidia.com/gpu: 8", "").replace(
        '["python3", "-m", "torch.distributed.run", "train.py", "--save=/ckpt"]', "[a]"
    ).replace("name: trainer", "name: first")  # fmt: skip
    words = refusal(text)
    assert "found: first, logger" in words and "--container" in words
    assert inject_text(text, "f", NATIVE._replace(container="first")).jobs


def test_a_name_for_only_that_no_job_has() -> None:
    words = refusal(JOB, NATIVE._replace(only=("gpt",)))
    assert words == "job.yaml: no job is called gpt (there are: megatron)"


def test_a_trainjob_without_image_or_command() -> None:
    text = text_of("trainjob.yaml")
    assert "spec.trainer.image" in refusal(text.replace("    image: megatron:1\n", ""))
    begin, end = text.index("    command:"), text.index("  podTemplateOverrides")
    assert "spec.trainer.command" in refusal(text[:begin] + text[end:])


def test_a_job_without_a_template() -> None:
    text = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {}\n"
    assert refusal(text).startswith("job.yaml:4: the PyTorchJob has no pod template; put one at")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n", "a: b\n", "kind: [1]\n"])
def test_yaml_that_is_no_object_is_refused_and_never_a_traceback(text: str) -> None:
    assert refusal(text).startswith("job.yaml:")
    assert workloads(text, "job.yaml") == []


@pytest.mark.parametrize(
    "spec",
    [
        "{pytorchReplicaSpecs: 3}",
        "{pytorchReplicaSpecs: {Worker: null}}",
        "{pytorchReplicaSpecs: {Worker: {template: {spec: {containers: pytorch}}}}}",
        "{pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [1, null]}}}}}",
        "{pytorchReplicaSpecs: {Worker: {replicas: many, template: {spec: null}}}}",
        "[]",
        "null",
    ],
)
def test_shapes_that_no_api_server_would_take(spec: str) -> None:
    text = f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: a}}\nspec: {spec}\n"
    assert refusal(text).startswith("job.yaml:4: ")
    workloads(text, "job.yaml")
