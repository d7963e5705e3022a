# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The dataset chart: the steps in order, the settings that they read, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.repository.chart_renders import CHARTS, NO_HELM, Refused, helm, only, rendered, sets
from support.runs.dataset_runs import SCRIPTS, STEPS, Dataset, lines

pytestmark = pytest.mark.skipif(helm() is None, reason=NO_HELM)
CHART = CHARTS / "dataset"
PLAIN = sets('files=[{"path": "/data/own/*.jsonl"}]')
SOURCES = {
    "slimpajama": ["--set", "source=slimpajama"],
    "slimpajama, all": sets("source=slimpajama", "amount=full", "parallelism=4"),
    "c4-mds": ["--set", "source=c4-mds"],
    "oscar": ["--set", "source=oscar"],
    "openwebtext-10k": [],
    "jsonl": [*sets("source=jsonl"), *PLAIN],
}


def settings(*words: str) -> dict[str, Any]:
    made = only(rendered(CHART, *words), "ConfigMap")
    return dict(json.loads(made["data"]["settings.json"]))


def pod(*words: str) -> dict[str, Any]:
    return dict(only(rendered(CHART, *words), "Job")["spec"]["template"]["spec"])


@pytest.mark.parametrize("source", [each for each in SOURCES if each != "c4-mds"])
def test_steps_are_init_containers_so_that_none_starts_before_the_one_before_it(
    source: str,
) -> None:
    made = pod(*SOURCES[source])
    assert tuple(each["name"] for each in made["initContainers"]) == STEPS[:-1]
    assert [each["name"] for each in made["containers"]] == [STEPS[-1]]
    for each in (*made["initContainers"], *made["containers"]):
        assert each["command"][:4] == ["python3", "-m", "dataset_steps", each["name"]]
    assert made["restartPolicy"] == "Never"


def test_the_scripts_in_the_chart_are_all_of_them_and_fit_a_config_map() -> None:
    data = only(rendered(CHART), "ConfigMap")["data"]
    files = {path.name: path.read_text() for path in (SCRIPTS / "dataset_steps").glob("*.py")}
    assert {name: text for name, text in data.items() if name.endswith(".py")} == files
    assert sum(map(len, data.values())) < 500_000


def test_the_rendered_scripts_run_with_the_rendered_settings(tmp_path: Path) -> None:
    """From the ConfigMap as the pod would see it, only the mount is another."""
    (tmp_path / "data" / "own").mkdir(parents=True)
    (tmp_path / "data" / "own" / "a.jsonl").write_bytes(lines("one", "two"))
    dataset = Dataset(tmp_path)
    words = sets("source=jsonl", f"storage.data.mountPath={dataset.root}", "tokenizer.vocabUrl=")
    words += sets("tokenizer.mergesUrl=", "preprocess.engine=megatron")
    words += sets(f"preprocess.megatronPath={dataset.megatron}")
    words += sets(json_files(f"{dataset.root}/own/*.jsonl"))
    dataset.settings = settings(*words)
    dataset.tool()
    text = (dataset.megatron / "tools/preprocess_data.py").read_text()
    text = text.replace('"--vocab-file", "--merge-file"', "").replace(
        "open(a.vocab_file).close(), open(a.merge_file).close()", ""
    )
    (dataset.megatron / "tools/preprocess_data.py").write_text(text)
    ran = dataset.all_steps()
    assert ran.code == 0, ran.said
    assert "count: ALL of jsonl: 1 files read, 1 .bin/.idx, 2 documents" in ran.said


def json_files(path: str) -> str:
    return "files=" + json.dumps([{"path": path}])


def test_a_failure_that_no_retry_fixes_fails_the_job_and_an_eviction_does_not() -> None:
    policy = only(rendered(CHART), "Job")["spec"]["podFailurePolicy"]["rules"]
    assert policy[0] == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}
    assert policy[1]["action"] == "Ignore"


def test_slimpajama_is_ten_chunks_and_the_whole_makes_fifty_outputs() -> None:
    whole = settings(*SOURCES["slimpajama, all"])
    (spec,) = whole["files"]
    assert spec["folders"] == [f"train/chunk{number}" for number in range(1, 11)]
    assert (whole["sample"], whole["perOutput"], whole["parallelism"]) == (0, 1200, 4)
    sample = settings(*SOURCES["slimpajama"])
    assert (sample["sample"], sample["perOutput"]) == (100, 10)


def test_several_pods_are_an_indexed_job() -> None:
    spec = only(rendered(CHART, *SOURCES["slimpajama, all"]), "Job")["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)


def test_the_token_comes_from_a_secret_and_only_to_the_step_that_downloads() -> None:
    made = pod(*sets("hub.tokenSecret.name=hf"))
    having = [
        each["name"]
        for each in (*made["initContainers"], *made["containers"])
        if any(one["name"] == "HF_TOKEN" for one in each["env"])
    ]
    assert having == ["download"]
    (found,) = [each for each in made["initContainers"][0]["env"] if each["name"] == "HF_TOKEN"]
    assert found["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert made["automountServiceAccountToken"] is False


def test_c4_is_converted_by_llm_foundry() -> None:
    made = pod(*SOURCES["c4-mds"])
    assert [each["name"] for each in made["initContainers"]] == ["convert"]
    assert made["containers"][0]["name"] == "count-mds"
    assert "llm-foundry" in made["containers"][0]["image"]
    assert settings(*SOURCES["c4-mds"])["mds"]["splits"] == ["train_small", "val_small"]
    whole = settings(*SOURCES["c4-mds"], *sets("amount=full"))
    assert whole["mds"]["splits"] == ["train", "val"]


def test_vocabulary_and_merges_come_from_the_same_model() -> None:
    found = settings()["tokenizer"]
    assert found["vocab.json"].endswith("/gpt2/resolve/main/vocab.json")
    assert found["merges.txt"].endswith("/gpt2/resolve/main/merges.txt")


def test_two_datasets_of_own_files_have_two_folders_on_one_claim() -> None:
    words = [*sets("source=jsonl"), *PLAIN]
    assert settings(*words)["name"] == "jsonl"
    assert settings(*words, *sets("name=wiki"))["name"] == "wiki"


def test_no_second_at_all_is_a_number_of_seconds() -> None:
    spec = only(rendered(CHART, *sets("job.ttlSecondsAfterFinished=0")), "Job")["spec"]
    assert spec["ttlSecondsAfterFinished"] == 0 and "activeDeadlineSeconds" not in spec


def test_the_image_that_it_takes_by_default_has_the_packages_of_its_engine() -> None:
    assert pod()["containers"][0]["image"].startswith("mwatch:")
    locked = (CHARTS.parent / "docker" / "requirements.lock").read_text()
    project = tomllib.loads((CHARTS.parents[1] / "pyproject.toml").read_text())["project"]
    wanted = {re.split("[><=]", each)[0] for each in project["optional-dependencies"]["data"]}
    assert wanted == {"regex", "tokenizers", "zstandard"}
    assert wanted <= set(re.findall(r"^([a-z]+)==", locked, re.MULTILINE))


def test_it_can_write_into_a_file_system_that_belongs_to_root() -> None:
    """Which a new Lustre does, while our image runs as somebody else."""
    assert pod()["securityContext"]["runAsUser"] == 0


REFUSALS = [
    (sets("name=tokenizer"), "that folder contains vocabulary and merges"),
    (sets("name=a/b"), "does not match pattern"),
    (sets("source=pile"), "must be one of 'slimpajama'"),
    (sets("source=jsonl"), "source jsonl needs files"),
    (PLAIN, "files can be set for source jsonl only"),
    ([*sets("source=jsonl"), *sets('files=[{"name": "x"}]')], "either a url or a path"),
    ([*sets("source=jsonl"), *sets('files=[{"path": "/other/x.jsonl"}]')], "is not under"),
    (sets("source=slimpajama", "parallelism=11"), "100 files make 10 outputs"),
    (sets("parallelism=2"), "openwebtext-10k is one file"),
    (sets("source=c4-mds", "parallelism=2"), "raise mds.workers instead"),
    ([*sets("source=c4-mds"), *sets('mds.splits=["train"]')], "which is all of C4"),
    (sets("tokenizer.mergesUrl="), "of the same model"),
    (sets("preprocess.tokenizerType=HuggingFaceTokenizer"), "needs preprocess.tokenizerModel"),
    (sets("preprocess.engine=nemo"), "must be one of 'mwatch', 'megatron'"),
    (sets("sampleFiles=0"), "minimum"),
    (sets("storage.data.pvcName=x"), "'pvcName' not allowed"),
    (sets("hub.token=hf_secret"), "'token' not allowed"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSALS, ids=[each[1] for each in REFUSALS])
def test_what_cannot_work_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        rendered(CHART, *words)
    assert sentence in str(refused.value)
