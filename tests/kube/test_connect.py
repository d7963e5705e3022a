# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No cluster and no credentials: one line each, with the fix, and never a traceback."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mwatch.kube.connect import connect
from mwatch.kube.errors import NoCluster, NoCredentials


def written(folder: Path, user: dict[str, Any], **context: str) -> str:
    file = folder / "config"
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://192.0.2.1:6443/"}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(json.dumps(body))
    return str(file)


def test_a_kubeconfig_gives_address_token_and_namespace(tmp_path: Path) -> None:
    file = written(tmp_path, {"token": "t0ken"}, namespace="train")
    found = connect(environ={"KUBECONFIG": file})
    assert (found.host, found.namespace) == ("http://192.0.2.1:6443", "train")
    assert found.authorization() == "Bearer t0ken"
    found.close()


def test_no_configuration_at_all_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="set KUBECONFIG"):
        connect(environ={"HOME": str(tmp_path)})


def test_a_file_that_is_not_there_and_a_context_that_is_not_in_it(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match=r"file .* does not exist.*--kubeconfig"):
        connect(str(tmp_path / "nobody"), environ={})
    with pytest.raises(NoCluster, match=r"no context nobody \(there are: "):
        connect(written(tmp_path, {}), "nobody", environ={})


@pytest.mark.parametrize("text", ["{", "just words", "[]", "\x00"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(NoCluster) as told:
        connect(str(file), environ={})
    assert "\n" not in str(told.value)


def plugin(folder: Path, script: str) -> dict[str, Any]:
    program = folder / "plugin"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program)}}


def test_a_program_for_credentials_that_fails_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    user = plugin(tmp_path, "echo 'sso session has expired' >&2; exit 1")
    with pytest.raises(NoCredentials, match=r"sso session has expired.*log in again"):
        connect(written(tmp_path, user), environ={})
    assert capsys.readouterr().err == ""
    assert not logging.getLogger().handlers or "Listener" not in str(logging.getLogger().handlers)


def test_a_program_for_credentials_gives_a_token(tmp_path: Path) -> None:
    status = {"token": "fresh"}
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    user = plugin(tmp_path, f"echo '{json.dumps(answer)}'")
    assert connect(written(tmp_path, user), environ={}).authorization() == "Bearer fresh"


def test_a_program_for_credentials_that_hangs_is_given_up(tmp_path: Path) -> None:
    user = plugin(tmp_path, "exec sleep 30")
    with pytest.raises(NoCredentials, match="no answer within"):
        connect(written(tmp_path, user), environ={}, config_seconds=0.3)


def test_a_pod_without_a_service_account_is_informed(tmp_path: Path) -> None:
    with pytest.raises(NoCluster, match="service account"):
        connect(environ={"KUBERNETES_SERVICE_HOST": "192.0.2.1", "HOME": str(tmp_path)})
