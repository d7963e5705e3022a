# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar is told: by file, environment and flag, and who goes before whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwatch.config.sidecar import VARIABLES, SidecarSettings, resolve, run_of
from mwatch.errors import InputError
from mwatch_trainer import contract


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
    values: dict[str, Any] = dict.fromkeys(VARIABLES, "x")
    values |= {"port": "7", "mode": "act", "otlp_endpoint": "http://c:4318", "json_logs": "true"}
    values |= {"until_final": "1", "no_page": "yes"}
    by_flag = resolve(values, {})
    environ = {variable: values[name] for name, variable in VARIABLES.items()}
    assert resolve({}, environ) == by_flag
    file = tmp_path / "c.toml"
    file.write_text("".join(f'{name} = "{value}"\n' for name, value in values.items()))
    assert resolve({"config": str(file)}, {}) == by_flag


def test_an_empty_variable_is_not_set() -> None:
    assert settings(environ={"MWATCH_PORT": "", "MWATCH_SAVE": ""}).port == 9401


@pytest.mark.parametrize(
    ("text", "flag"), [("yes", True), ("No", False), ("TRUE", True), ("0", False)]
)
def test_a_flag_may_be_written_in_several_ways(text: str, flag: bool) -> None:
    assert settings(environ={"MWATCH_JSON_LOGS": text}).json_logs is flag


def test_the_modes_are_those_of_the_wrapper() -> None:
    for mode in contract.MODES:
        assert settings({"mode": mode}).mode == mode


def test_the_run_is_the_job_where_that_is_reported() -> None:
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
        ("prot = 1", "line 1: unknown key prot; did you mean port?"),
        ("zzz = 1", "unknown key zzz; known keys: dir, evidence, "),
        ("port = true", "port: expected a port from 0 to 65535 (0: any), got True"),
        ('\nport = "x"', "line 2: invalid value for port: expected a port from 0 to 65535"),
        ("port = 70000", "expected a port from 0 to 65535 (0: any), got 70000"),
        ("run = 5", "run: expected a name of letters, digits, dots and dashes, got 5"),
        ('node = "a b"', "node: expected a name of letters, digits, dots and dashes, got 'a b'"),
        ("save = 5", "save: expected a path, got 5"),
        ('save = "a\\u0000b"', "save: expected a path"),
        ('mode = "acting"', "mode: expected one of observe, act, got 'acting'"),
        ('otlp_endpoint = "c:4317"', "expected an address such as http://HOST:4318, got 'c:4317'"),
        ('json_logs = "maybe"', "json_logs: expected true or false, got 'maybe'"),
        ("port = ", "line 1: invalid TOML"),
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
