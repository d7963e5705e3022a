# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar is told: by file, environment and flag, and who goes before whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.config.sidecar import OPTIONS, SidecarSettings, resolve, run_of
from mwatch.errors import InputError


def settings(
    flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> SidecarSettings:
    return resolve(flags or {}, environ or {}, hostname=lambda: "gpt-worker-3")


def test_without_a_word_it_watches_the_usual_place() -> None:
    found = settings()
    assert (str(found.dir), found.port, found.host) == ("/mwatch", 9401, "::")
    assert (found.pod, found.run) == ("gpt-worker-3", "gpt")


def test_a_flag_goes_before_a_variable_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('port = 1\nrun = "of-file"\nnode = "n1"\njson_logs = true\n')
    environ = {"MWATCH_CONFIG": str(file), "MWATCH_PORT": "2", "MWATCH_RUN": "of-variable"}
    found = settings({"port": "3"}, environ)
    assert (found.port, found.run, found.node, found.json_logs) == (3, "of-variable", "n1", True)


def test_every_option_has_all_three_ways(tmp_path: Path) -> None:
    values: dict[str, Any] = dict.fromkeys(OPTIONS, "x")
    values |= {"port": "7", "mode": "act", "otlp_endpoint": "http://c:4318", "json_logs": "true"}
    values["until_final"] = "1"
    by_flag = resolve(values, {})
    environ = {option.variable: values[name] for name, option in OPTIONS.items()}
    assert resolve({}, environ) == by_flag
    file = tmp_path / "c.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    assert resolve({"config": str(file)}, {}) == by_flag


def test_an_empty_variable_is_not_set() -> None:
    assert settings(environ={"MWATCH_PORT": "", "MWATCH_SAVE": ""}).port == 9401


def test_the_run_is_the_job_where_that_is_told() -> None:
    assert settings(environ={"MWATCH_JOB": "llama"}).run == "llama"
    assert settings(environ={"MWATCH_JOB": "llama", "MWATCH_RUN": "other"}).run == "other"


@pytest.mark.parametrize(
    ("pod", "run"),
    [
        ("gpt-master-0", "gpt"),
        ("gpt-7b-worker-12", "gpt-7b"),
        ("llama-node-0-3-x7k2p", "llama"),
        ("train-0", "train"),
        ("alone", "alone"),
        ("worker-0", "worker"),
    ],
)
def test_a_pod_names_its_run(pod: str, run: str) -> None:
    assert run_of(pod) == run


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot = 1", "prot: no such key; did you mean port?"),
        ("zzz = 1", "zzz: no such key; known: dir"),
        ("port = true", "port: is True"),
        ('port = "x"', "port: is 'x'"),
        ("run = 5", "run: is 5; give a text"),
        ('json_logs = "maybe"', "json_logs"),
        ("port = ", "is no TOML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_its_key(
    text: str, word: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=f"^{file}: ") as caught:
        settings({"config": str(file)})
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
