# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The LLM-Foundry chart: it resumes, keeps its exit code, is watched as `inject` would do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mwatch.checks.every import look
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text
from mwatch.model.checks import CheckLevel
from mwatch_trainer.command.argv import find_program
from mwatch_trainer.command.composer import is_composer
from mwatch_trainer.command.composer import settings as composer_settings
from mwatch_trainer.zipapp_build import build
from support.repository.chart_renders import (
    CHARTS,
    NO_HELM,
    Refused,
    helm,
    only,
    pods,
    rendered,
    rendered_text,
    sets,
    trainer,
)
from support.repository.manifest_files import one_workload
from support.repository.source_rules import SPDX

pytestmark = pytest.mark.skipif(helm() is None, reason=NO_HELM)
CHART = CHARTS / "llm-foundry-training"
CONFIGS = {
    "mpt-125m": 2, "mpt-350m": 2, "mpt-760m": 2, "mpt-1b": 2, "mpt-3b": 2, "mpt-7b": 2,
    "mpt-13b": 2, "mpt-30b": 16, "mpt-70b": 32,
}  # fmt: skip


GOLDEN = Path(__file__).with_name("golden") / "llm-foundry-training.yaml"


def test_the_defaults_render_as_they_did() -> None:
    """A change here is a change for everybody who upgrades: look at it, then take it over."""
    header = "".join(f"{line}\n" for line in SPDX)
    text = header + rendered_text(CHART, name="mpt")
    if os.environ.get("MWATCH_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "MWATCH_WRITE_GOLDEN=1 takes it over"


def job(*words: str) -> dict[str, Any]:
    return only(rendered(CHART, *words, name="mpt"), "PyTorchJob")


def command(*words: str) -> list[str]:
    return list(trainer(job(*words, *sets("mwatch.enabled=false")))["command"])


@pytest.mark.parametrize("mode", ["observe", "act"])
@pytest.mark.parametrize("sidecar", ["native", "container"])
@pytest.mark.parametrize(
    "more", [sets("mwatch.wrapper=image"), sets("resources.cpu=90", "resources.memory=800Gi")]
)
def test_wrapper_and_sidecar_are_what_inject_would_add(
    mode: str, sidecar: str, more: list[str]
) -> None:
    plain = rendered_text(CHART, *more, *sets("mwatch.enabled=false"), name="mpt")
    wish = InjectRequest(
        "mwatch:0.1.0", "native" if sidecar == "native" else "container",
        wrapper="image" if "mwatch.wrapper=image" in more else "configmap",
    )  # fmt: skip
    changed = inject_text(plain, "job.yaml", wish._replace(mode="act" if mode == "act" else None))
    injected = only(list(yaml.safe_load_all(changed.text)), "PyTorchJob")
    del injected["metadata"]["annotations"]["mwatch.dev/injected"]
    ours = job(*more, *sets(f"mwatch.mode={mode}", f"mwatch.sidecar={sidecar}"))
    assert ours == injected
    assert changed.notes == ()


@pytest.mark.parametrize("config", CONFIGS)
def test_every_size_passes_the_checks_that_diagnose_makes(config: str) -> None:
    words = sets(f"model.config={config}", f"training.nodes={CONFIGS[config]}")
    text = rendered_text(CHART, *words, name="mpt")
    found = [each for each in look(one_workload(text)) if each.level is not CheckLevel.INFO]
    assert found == []


def test_a_restart_resumes() -> None:
    words = command()
    for each in ("run_name=mpt", "save_folder=/checkpoints/mpt", "autoresume=true"):
        assert each in words
    program = find_program(words, {})
    assert is_composer(program)
    found = composer_settings(program)
    assert (found.save_folder, found.autoresume) == ("/checkpoints/mpt", True)


def test_no_shell_and_no_pipe_stand_between_composer_and_its_exit_code() -> None:
    words = command()
    assert words[0] == "composer"
    assert not any("tee" in each.split() or "|" in each for each in words)
    assert "args" not in trainer(job())


# Says what it was given, as Composer's launcher would read it, and ends as a crashed rank makes it.
FAKE_COMPOSER = """#!/bin/sh
[ "$1" = --world_size ] && [ -n "$RUN_NAME" ] || exit 99
case "$*" in *" autoresume=true "*) ;; *) exit 98 ;; esac
exit 17
"""


@pytest.mark.parametrize("watched", ["true", "false"])
def test_the_container_ends_with_the_exit_code_of_composer(tmp_path: Path, watched: str) -> None:
    """The rendered command, run; only the folder of the wrapper is another."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "composer").write_text(FAKE_COMPOSER)
    (tmp_path / "bin" / "composer").chmod(0o755)
    given_folder, volume = tmp_path / "given", tmp_path / "volume"
    given_folder.mkdir()
    volume.mkdir()
    build(str(given_folder / "mwatch-run.pyz"))
    ours = {"/etc/mwatch-run/": f"{given_folder}/", "/mwatch/": f"{volume}/"}
    made = trainer(job(*sets(f"mwatch.enabled={watched}")))
    words = list(made["command"])
    for theirs, folder in ours.items():
        words = [each.replace(theirs, folder) for each in words]
    given = {each["name"]: each["value"] for each in made["env"] if "value" in each}
    if watched == "true":
        given |= {"MWATCH_DIR": str(volume), "MWATCH_CONTROLLER": "", "MWATCH_JOB": "mpt"}
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        words, env={**given, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 17, done.stderr
    assert "not watched" not in done.stderr


def test_ranks_and_address_are_the_operators_own() -> None:
    words = command(*sets("training.nodes=4"))
    assert words[words.index("--node_rank") + 1] == "$(RANK)"
    assert words[words.index("--master_addr") + 1] == "$(MASTER_ADDR)"
    assert words[words.index("--world_size") + 1] == "32"
    assert job(*sets("training.nodes=4"))["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3


def test_one_node_has_no_worker() -> None:
    assert set(job(*sets("training.nodes=1"))["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_updates_are_flat_or_nested_and_numbers_stay_numbers() -> None:
    words = command("--set-json", 'yamlUpdates={"optimizer.lr": 0.0003, "max_seq_len": 1000000, '
                    '"loggers": {"tensorboard": {"log_dir": "/data/tb"}}, "callbacks.x": [1, 2], '
                    '"eval_first": true, "seed": null}')  # fmt: skip
    for each in ("optimizer.lr=0.0003", "max_seq_len=1000000", "callbacks.x=[1,2]",
                 "loggers.tensorboard.log_dir=/data/tb", "eval_first=true"):  # fmt: skip
        assert each in words


def test_sharp_is_off_unless_it_is_asked_for() -> None:
    names = {each["name"] for each in trainer(job())["env"]}
    assert "NCCL_COLLNET_ENABLE" not in names
    names = {each["name"] for each in trainer(job(*sets("network.sharp=true")))["env"]}
    assert {"NCCL_COLLNET_ENABLE", "SHARP_COLL_ENABLE_SAT"} <= names


def test_without_infiniband_nothing_of_it_is_asked_for() -> None:
    made = trainer(job(*sets("network.kind=tcp")))
    assert made["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert not any(each["name"].startswith(("NCCL_IB", "UCX")) for each in made["env"])


def test_the_pod_is_not_privileged() -> None:
    assert trainer(job())["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}


def test_limits_of_a_job_are_where_the_operator_reads_them() -> None:
    words = sets("job.ttlSecondsAfterFinished=3600", "job.backoffLimit=20", "job.suspend=true")
    policy = job(*words)["spec"]["runPolicy"]
    assert policy == {
        "cleanPodPolicy": "Running", "ttlSecondsAfterFinished": 3600, "backoffLimit": 20,
        "suspend": True,
    }  # fmt: skip


def test_data_and_checkpoints_may_share_a_claim() -> None:
    words = sets("storage.checkpoints.claim=data", "storage.checkpoints.mountPath=/data")
    made = job(*words)
    spec = pods(made)[0]["spec"]
    claims = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
    assert len(claims) == 1
    (sidecar,) = [each for each in spec["containers"] if each["name"] == "mwatch"]
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in sidecar["volumeMounts"]


def test_scrape_annotations_are_for_clusters_without_a_pod_monitor() -> None:
    found = pods(job(*sets("mwatch.scrapeAnnotations=true")))[0]["metadata"]["annotations"]
    assert found["prometheus.io/port"] == "9401"


REFUSALS = [
    (sets("model.config=mpt-5b"), "LLM-Foundry has no such file"),
    (sets("model.config=gpt2"), "does not match pattern"),
    (sets("training.nodes=3"), "does not divide among 24 GPUs; give training.globalBatchSize 240"),
    (sets("training.globalBatchSize=100"), "a global batch of 100"),
    (sets("yamlUpdates.global_train_batch_size=100"), "a global batch of 100"),
    (sets("model.config=mpt-70b", "training.nodes=1"), "use at least 14 GPUs"),
    (sets("yamlUpdates.autoresume=false"), "without it a restart begins anew"),
    (sets("yamlUpdates.save_folder=/tmp/x"), "use checkpoints.folder"),
    (sets("yamlUpdates.save_overwrite=true"), "with it autoresume is off"),
    (sets("yamlUpdates.run_name=x"), "by which a restart finds its checkpoints"),
    (sets(r"yamlUpdates.variables\.data_remote=/data/x"), "use data.remote"),
    (sets("yamlUpdates.variables.data_local=/tmp/x"), "use data.local"),
    (sets("checkpoints.folder=/tmp/checkpoints"), "is not on a volume"),
    (sets("checkpoints.interval=500steps"), "does not match pattern"),
    (sets("checkpoints.keep=1"), "/checkpoints/keep"),
    (sets("data.local=/data/c4-mds"), "are the same"),
    (sets("storage.checkpoints.claim=data"), "so they have one mountPath"),
    (sets("storage.checkpoints.mountPath=/data"), "two claims cannot both be mounted"),
    (sets("job.restartPolicy=ExitCode"), "needs mwatch.mode act"),
    (sets("job.backoffLimit=1"), "one restart of all 2 pods counts as 2"),
    (sets("resources.gracePeriodSeconds=30"), "minimum"),
    (
        ["--kube-version", "1.28.0", *sets("mwatch.sidecar=native")],
        "does not support native sidecars: set mwatch.sidecar=container",
    ),
    (sets("mwatch.mode=kill"), "must be one of 'observe', 'act'"),
    (sets("training.nodes=0"), "minimum"),
    (sets("model.custom.layers=2"), "'custom' not allowed"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSALS, ids=[each[1] for each in REFUSALS])
def test_what_cannot_work_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        rendered(CHART, *words, name="mpt")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("name", "sentence"), [("1mpt", "starts with a letter"), ("m" * 51, "at most 50 are allowed")]
)
def test_a_name_that_the_operator_cannot_use_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        rendered(CHART, name=name)
    assert sentence in str(refused.value)
