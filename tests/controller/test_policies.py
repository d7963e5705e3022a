# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that jobs name: what is used, what is refused, and what stays while nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kube.fake_api import Reply, fake_api
from mwatch.controller.controller import Policies
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from mwatch.model.kube.job import KubeJob
from mwatch.model.settings import Settings
from support.builders import kube

JOB = kube.pytorch_job(annotations={"mwatch.dev/policy": "mine"})


def config_map(**data: str) -> Reply:
    return Reply(200, {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": data})


@contextmanager
def policies(*answers: Reply, job: KubeJob = JOB) -> Iterator[Policies]:
    import urllib3

    with fake_api(*answers) as api:
        pool = urllib3.PoolManager()
        connection = Connection(api.address, pool, lambda: None, "ns")
        access = Access(connection, limits=CallLimits(call_seconds=5.0, tries=1))
        made = Policies(access, "ns", Settings())
        made.want([job])
        try:
            yield made
        finally:
            pool.clear()


def test_what_a_policy_names_is_used() -> None:
    with policies(config_map(**{"policy.toml": "[act]\nrestarts_per_window = 9\n"})) as found:
        assert found.of(JOB) is None  # not read yet
        found.read()
        known = found.of(JOB)
    assert known is not None and known.problem == ""
    assert known.settings.act.restarts_per_window == 9


def test_a_config_map_with_one_key_of_another_name_is_that_policy() -> None:
    with policies(config_map(mine="[act]\nrestarts_per_window = 9\n")) as found:
        found.read()
        known = found.of(JOB)
    assert known is not None and known.settings.act.restarts_per_window == 9


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Reply(404, {"message": "not found"}), "there is no ConfigMap mine"),
        (config_map(), "has no key policy.toml"),
        (config_map(a="x", b="y"), "has no key policy.toml"),
        (config_map(**{"policy.toml": "[act"}), "line 1: invalid TOML"),
        (
            config_map(**{"policy.toml": "[act]\nrestarts = 1"}),
            "line 2: unknown key act.restarts; did you",
        ),
        (
            config_map(**{"policy.toml": "[act]\nrestarts_per_window = -1"}),
            "from 0 to 1e9, got -1",
        ),
        (Reply(403, {"message": "configmaps is forbidden"}), "ask for that right"),
    ],
)
def test_a_bad_policy_is_reported_and_the_usual_one_used(answer: Reply, words: str) -> None:
    with policies(answer) as found:
        found.read()
        known = found.of(JOB)
    assert known is not None and words in known.problem
    assert known.settings == Settings()


def test_an_api_server_that_does_not_answer_changes_nothing() -> None:
    good = config_map(**{"policy.toml": "[act]\nrestarts_per_window = 9\n"})
    with policies(good, Reply(503, {})) as found:
        found.read()
        found.read()
        known = found.of(JOB)
    assert known is not None and known.settings.act.restarts_per_window == 9


def test_a_job_that_names_none_has_the_usual_one() -> None:
    plain: Any = kube.pytorch_job(annotations={})
    with policies(Reply(500, {})) as found:
        assert found.of(plain) is not None
