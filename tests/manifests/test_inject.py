# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `inject` adds to a job, and that nothing else of the file changes."""

from __future__ import annotations

import pytest

from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text
from support.repository.manifest_files import (
    FILES,
    NATIVE,
    PLAIN,
    injected,
    named,
    objects_in,
    pods_of,
    text_of,
    variables,
)

KINDS = {
    "aks.yaml": "PyTorchJob",
    "hyperpod.yaml": "PyTorchJob",
    "jobset.yaml": "JobSet",
    "job.yaml": "Job",
    "statefulset.yaml": "StatefulSet",
    "trainjob.yaml": "ClusterTrainingRuntime",
    "trainjob-with-runtime.yaml": "TrainingRuntime",
}
TRAINERS = {
    "aks.yaml": "pytorch",
    "hyperpod.yaml": "pytorch",
    "jobset.yaml": "megatron",
    "job.yaml": "main",
    "statefulset.yaml": "trainer",
    "trainjob.yaml": "node",
    "trainjob-with-runtime.yaml": "node",
}


COPIED = NATIVE._replace(wrapper="image")


def test_every_file_of_the_tests_is_in_the_tables() -> None:
    assert set(FILES) == set(KINDS) == set(TRAINERS)


@pytest.mark.parametrize("name", FILES)
def test_a_native_sidecar_is_an_init_container_that_always_restarts(name: str) -> None:
    pod = pods_of(injected(name, COPIED).text, KINDS[name])[-1]
    assert [each["name"] for each in pod["initContainers"]][:2] == ["mwatch-copy", "mwatch"]
    sidecar = named(pod["initContainers"], "mwatch")
    assert sidecar["restartPolicy"] == "Always"
    assert "mwatch" not in [each["name"] for each in pod["containers"]]
    assert "MWATCH_UNTIL_FINAL" not in variables(sidecar)


@pytest.mark.parametrize("name", FILES)
def test_by_default_nothing_of_ours_stands_before_the_trainer(name: str) -> None:
    pod = pods_of(injected(name, InjectRequest("mwatch:test")).text, KINDS[name])[-1]
    ours = {"mwatch", "mwatch-copy"} & {each["name"] for each in pod.get("initContainers", ())}
    assert not ours
    wrapper = {"name": "mwatch-run", "configMap": {"name": "mwatch-run", "optional": True}}
    assert wrapper in pod["volumes"]
    mount = {"name": "mwatch-run", "mountPath": "/etc/mwatch-run", "readOnly": True}
    assert mount in named(pod["containers"], TRAINERS[name])["volumeMounts"]


@pytest.mark.parametrize("name", FILES)
def test_a_plain_sidecar_ends_with_the_trainer(name: str) -> None:
    pod = pods_of(injected(name, PLAIN).text, KINDS[name])[-1]
    sidecar = named(pod["containers"], "mwatch")
    assert "restartPolicy" not in sidecar
    assert variables(sidecar)["MWATCH_UNTIL_FINAL"] == "true"
    assert pod["containers"][0]["name"] == TRAINERS[name]  # kubectl shows the first one's log


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "wish", [COPIED, COPIED._replace(sidecar="container")], ids=["native", "container"]
)
def test_the_sidecar_asks_for_little_and_has_no_probe(name: str, wish: InjectRequest) -> None:
    for pod in pods_of(injected(name, wish).text, KINDS[name])[-1:]:
        everyone = [*pod["containers"], *pod["initContainers"]]
        for each in [named(everyone, "mwatch"), named(everyone, "mwatch-copy")]:
            assert not {"readinessProbe", "livenessProbe", "startupProbe"} & set(each)
            assert set(each["resources"]["limits"]) <= {"cpu", "memory"}
            assert each["imagePullPolicy"] == "IfNotPresent"
        assert "shareProcessNamespace" not in pod
        assert named(everyone, "mwatch")["ports"] == [{"name": "mwatch", "containerPort": 9401}]


@pytest.mark.parametrize("name", FILES)
def test_the_trainer_gets_the_volume_and_its_names(name: str) -> None:
    pod = pods_of(injected(name).text, KINDS[name])[-1]
    trainer = named(pod["containers"], TRAINERS[name])
    assert variables(trainer)["MWATCH_DIR"] == "/mwatch"
    assert variables(trainer)["MWATCH_POD"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert {"name": "mwatch", "mountPath": "/mwatch"} in trainer["volumeMounts"]
    assert named(pod["volumes"], "mwatch")["emptyDir"] == {"sizeLimit": "2Gi"}
    assert pod["terminationGracePeriodSeconds"] >= 60


def test_the_name_of_the_run_comes_from_the_pods_labels() -> None:
    for name, label in (
        ("aks.yaml", "training.kubeflow.org/job-name"),
        ("jobset.yaml", "jobset.sigs.k8s.io/jobset-name"),
        ("job.yaml", "job-name"),
        ("trainjob.yaml", "jobset.sigs.k8s.io/jobset-name"),
    ):
        pod = pods_of(injected(name).text, KINDS[name])[-1]
        wanted = {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
        assert variables(named(pod["initContainers"], "mwatch"))["MWATCH_RUN"] == wanted
        assert variables(named(pod["containers"], TRAINERS[name]))["MWATCH_JOB"] == wanted
    (pod,) = pods_of(injected("statefulset.yaml").text, "StatefulSet")
    assert variables(named(pod["initContainers"], "mwatch"))["MWATCH_RUN"] == "gpt"


@pytest.mark.parametrize(
    ("name", "mount"),
    [
        ("aks.yaml", {"name": "data", "mountPath": "/data", "readOnly": True}),
        ("hyperpod.yaml", {"name": "fsx", "mountPath": "/fsx", "readOnly": True}),
        (
            "jobset.yaml",
            {"name": "ckpt", "mountPath": "/ckpt", "subPath": "team", "readOnly": True},
        ),
        ("job.yaml", {"name": "work", "mountPath": "/work", "readOnly": True}),
        ("statefulset.yaml", {"name": "ckpt", "mountPath": "/ckpt", "readOnly": True}),
    ],
)
def test_the_sidecar_sees_the_checkpoints_and_cannot_write_there(
    name: str, mount: dict[str, object]
) -> None:
    pod = pods_of(injected(name).text, KINDS[name])[-1]
    assert mount in named(pod["initContainers"], "mwatch")["volumeMounts"]


def test_the_save_folder_is_read_out_of_a_script_of_the_same_file() -> None:
    pod = pods_of(injected("aks.yaml").text, "PyTorchJob")[0]
    sidecar = named(pod["initContainers"], "mwatch")
    assert variables(sidecar)["MWATCH_SAVE"] == "/data/checkpoints"


def test_a_save_folder_that_nobody_names_is_reported() -> None:
    text = text_of("hyperpod.yaml").replace("--save", "--other").replace("--load", "--more")
    result = inject_text(text, "f", NATIVE)
    assert any("--checkpoints" in each for each in result.notes)
    given = inject_text(text, "f", NATIVE._replace(checkpoints="/fsx/here"))
    (pod,) = pods_of(given.text, "PyTorchJob")
    assert variables(named(pod["initContainers"], "mwatch"))["MWATCH_SAVE"] == "/fsx/here"


def test_the_token_is_a_secret_of_the_job_that_need_not_be_there() -> None:
    (pod,) = pods_of(injected("hyperpod.yaml").text, "PyTorchJob")
    secret = named(pod["volumes"], "mwatch-token")["secret"]
    assert secret == {"secretName": "mwatch-megatron", "optional": True}
    for container in (named(pod["containers"], "pytorch"), named(pod["initContainers"], "mwatch")):
        assert variables(container)["MWATCH_TOKEN_FILE"] == "/etc/mwatch/token"
        mount = named(container["volumeMounts"], "mwatch-token")
        assert (mount["mountPath"], mount["readOnly"]) == ("/etc/mwatch", True)


def test_without_a_fixed_name_there_is_no_token_and_that_is_reported() -> None:
    result = injected("job.yaml")
    (pod,) = pods_of(result.text, "Job")
    assert "mwatch-token" not in [each["name"] for each in pod["volumes"]]
    assert any("no token" in each for each in result.notes)


def test_the_users_grace_period_stays_and_saving_on_sigterm_gets_more() -> None:
    assert pods_of(injected("jobset.yaml").text, "JobSet")[1]["terminationGracePeriodSeconds"] == 90
    assert pods_of(injected("job.yaml").text, "Job")[0]["terminationGracePeriodSeconds"] == 300
    (pod,) = pods_of(injected("hyperpod.yaml").text, "PyTorchJob")
    assert pod["terminationGracePeriodSeconds"] == 60


@pytest.mark.parametrize(
    ("name", "old", "policy"),
    [
        ("hyperpod.yaml", "", "OnFailure"),
        ("hyperpod.yaml", "restartPolicy: OnFailure", "Never"),
        ("jobset.yaml", "", "Never"),
        ("statefulset.yaml", "", "Always"),
        ("trainjob-with-runtime.yaml", "", "OnFailure"),
    ],
)
def test_the_wrapper_learns_what_the_pod_does_after_its_end(
    name: str, old: str, policy: str
) -> None:
    text = text_of(name).replace(old, "restartPolicy: ExitCode") if old else text_of(name)
    pod = pods_of(inject_text(text, "f", NATIVE).text, KINDS[name])[-1]
    told = variables(named(pod["containers"], TRAINERS[name]))["MWATCH_RESTART_POLICY"]
    assert told == policy


def test_acting_passes_the_grace_period_to_the_wrapper_and_observing_does_not() -> None:
    acting = inject_text(text_of("hyperpod.yaml"), "f", NATIVE._replace(mode="act"))
    words = named(pods_of(acting.text, "PyTorchJob")[0]["containers"], "pytorch")["command"]
    assert words[3:7] == ["mwatch-run", "--grace", "55", "--"]
    observing = named(
        pods_of(injected("hyperpod.yaml").text, "PyTorchJob")[0]["containers"], "pytorch"
    )["command"]
    assert observing[3:6] == ["mwatch-run", "--", "torchrun"]


def test_the_mode_is_the_request_else_the_jobs_annotation_else_observe() -> None:
    job = objects_in(injected("statefulset.yaml").text)[0]
    assert job["metadata"]["annotations"]["mwatch.dev/mode"] == "act"
    wish = NATIVE._replace(mode="observe")
    told = objects_in(inject_text(text_of("statefulset.yaml"), "f", wish).text)[0]
    assert told["metadata"]["annotations"]["mwatch.dev/mode"] == "observe"
    other = objects_in(injected("jobset.yaml").text)[0]
    assert other["metadata"]["annotations"]["mwatch.dev/mode"] == "observe"


def test_a_pod_of_the_guaranteed_class_keeps_its_class() -> None:
    text = text_of("statefulset.yaml")
    begin, end = text.index("      initContainers:"), text.index("      containers:")
    (pod,) = pods_of(inject_text(text[:begin] + text[end:], "f", NATIVE).text, "StatefulSet")
    for each in pod["initContainers"]:
        assert each["resources"]["limits"] == each["resources"]["requests"]
        assert set(each["resources"]["limits"]) == {"cpu", "memory"}


def test_the_sidecar_runs_as_the_trainers_user() -> None:
    (pod,) = pods_of(injected("statefulset.yaml").text, "StatefulSet")
    rights = named(pod["initContainers"], "mwatch")["securityContext"]
    assert rights == {
        "runAsUser": 1000, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True
    }  # fmt: skip


def test_rights_that_the_trainer_gives_up_are_given_up_beside_it() -> None:
    """A namespace of the restricted standard takes no pod in which one container does not."""
    text = text_of("statefulset.yaml").replace(
        "runAsUser: 1000",
        "runAsUser: 1000, runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}, "
        "capabilities: {drop: [ALL], add: [IPC_LOCK]}",
    )
    (pod,) = pods_of(inject_text(text, "f", COPIED).text, "StatefulSet")
    for name in ("mwatch-copy", "mwatch"):
        assert named(pod["initContainers"], name)["securityContext"] == {
            "runAsUser": 1000, "runAsNonRoot": True, "allowPrivilegeEscalation": False,
            "seccompProfile": {"type": "RuntimeDefault"}, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }  # fmt: skip


def test_only_the_part_of_a_jobset_that_trains_is_changed() -> None:
    store, node = pods_of(injected("jobset.yaml").text, "JobSet")
    assert "initContainers" not in store
    assert "initContainers" in node


def test_a_template_that_two_replicas_share_is_changed_once() -> None:
    master, worker = pods_of(injected("aks.yaml").text, "PyTorchJob")
    assert master == worker
    assert named(master["containers"], "pytorch")["command"].count("mwatch-run") == 1


def test_other_objects_of_the_file_keep_every_byte() -> None:
    for name in ("aks.yaml", "hyperpod.yaml"):
        before, after = text_of(name), injected(name).text
        assert after.split("---\n")[0] == before.split("---\n")[0]
    assert injected("hyperpod.yaml").text.endswith("# The end.\n")
