# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The environment of the ranks is evidence; what is secret in it is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mwatch_trainer.evidence.dumps import MAX_BYTES, environments
from mwatch_trainer.processes.proc import Process
from mwatch_trainer.scrub.known_good import scrubbed_environment
from mwatch_trainer.scrub.scrubber import Scrubber
from support.runs.wrapper_runs import ask, child_pid, environ, python, running

SECRET = [
    "HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID",
    "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "DB_PASSWORD",
    "PGPASSWORD", "MYSQL_PWD", "GITHUB_PAT", "MLFLOW_TRACKING_PASSWORD",
    "GOOGLE_APPLICATION_CREDENTIALS_JSON",
    "AZURE_STORAGE_CONNECTION_STRING", "SENTRY_DSN", "SLACK_WEBHOOK", "NGC_CLI_API_KEY", "my-token",
    "OPENAI_KEY", "SECRET", "COMET_APIKEY", "REDIS_AUTH", "TOKEN2", "ADMIN_PW", "CREDS", "CONNSTR",
    "BASIC_AUTH_CREDS", "CI_JOB_JWT", "SLURM_JWT", "NVIDIA_API_KEY", "TORCH_TOKEN", "UNHEARD_OF",
]  # fmt: skip
PLAIN = [
    "PATH", "OLDPWD", "HOME", "TOKENIZERS_PARALLELISM", "TOKENIZER_TYPE", "RANK", "SLURM_JOB_ID",
    "AWS_REGION", "AWS_WEB_IDENTITY_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS_PATH",
    "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "SSH_AUTH_SOCK", "FI_PROVIDER", "MASTER_ADDR",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_value_goes_by_its_name_however_plain_it_looks(name: str) -> None:
    clean = scrubbed_environment({name: "abc"}, Scrubber())
    assert clean == {name: "[3 characters]"}


@pytest.mark.parametrize("name", PLAIN)
def test_other_names_keep_their_values(name: str) -> None:
    assert scrubbed_environment({name: "abc"}, Scrubber()) == {name: "abc"}


def test_a_value_goes_by_its_shape_whatever_its_name() -> None:
    found = {
        "PATH": "http://user:hunter2@proxy:3128",
        "PYTHONARGS": "--db-password hunter22 --lr 1",
        "HOME": "corp-12345",
        "TORCH_LOGS": "1 " * 4500,
    }
    clean = scrubbed_environment(found, Scrubber(["corp-[0-9]+"]))
    assert clean["PATH"] == "http://user:[scrubbed url]@proxy:3128"
    assert clean["PYTHONARGS"] == "--db-password [scrubbed flag] --lr 1"
    assert clean["HOME"] == "[scrubbed]"
    assert len(clean["TORCH_LOGS"]) == 4096
    assert scrubbed_environment({"USE_AUTH": "true", "HF_TOKEN": ""}, Scrubber()) == {
        "USE_AUTH": "true",
        "HF_TOKEN": "",
    }


def test_many_processes_are_reported_once_and_by_their_difference(tmp_path: Path) -> None:
    same = b"".join(b"V%d=%s\0" % (n, b"x" * 90) for n in range(1000))
    processes = []
    for pid in range(300):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(same + b"RANK=%d\0" % pid)
        (tmp_path / str(pid) / "cmdline").write_bytes(b"python\0--token\0" + b"a1" * 20 + b"\0")
        processes.append(Process(pid, 1, "python", "S", 0.0, 0, 1, 5))
    found = environments(processes, (), str(tmp_path))
    assert len(json.dumps(found)) < 2 * MAX_BYTES
    assert found["environment"]["RANK"] == "0"
    assert found["processes"][1]["differs"] == {"RANK": "1"}
    assert found["left_out"] == 300 - len(found["processes"])


def test_a_dump_has_the_environment_and_arguments_of_the_ranks(tmp_path: Path) -> None:
    words = python("import time; time.sleep(600)", "--api-key", "hunter2hunter2", "--lr", "0.1")
    given = environ(HF_TOKEN="plainword", MASTER_ADDR="node-0", MINE="corp-777")
    options = ["--scrub-pattern", "corp-[0-9]+"]
    with running(tmp_path, *words, options=options, given=given):
        top = child_pid(tmp_path)
        assert ask(str(tmp_path), {"op": "dump", "id": "d", "seconds": 1})["ok"] is True
    found = json.loads((tmp_path / "dumps" / "d" / "environment.json").read_text())
    assert found["environment"]["MASTER_ADDR"] == "node-0"
    assert found["environment"]["HF_TOKEN"] == "[9 characters]"
    assert found["environment"]["MINE"] == "[8 characters]"
    (process,) = found["processes"]
    assert process["pid"] == top
    assert process["argv"][-4:] == ["--api-key", "[14 characters]", "--lr", "0.1"]
    text = (tmp_path / "dumps" / "d" / "environment.json").read_text()
    assert not any(each in text for each in ("plainword", "hunter2", "corp-777"))
    assert os.environ["PATH"] in text
