# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Queries name metrics and labels that exist, and Prometheus can read them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from dashboards.gpu_promql import DCGM
from monitoring.panel_queries import TIMES, boards, panels, queries
from mwatch.export.metrics import catalog
from support.debian_tools import ToolMissing, debian_tool

EVERY = queries()
OF_CONTROLLER = {metric.name: set(metric.labels) for metric in catalog.CONTROLLER}
OURS = {metric.name: {"run", *metric.labels} for metric in catalog.ALL} | OF_CONTROLLER
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
OF_THE_SCRAPE = {"cluster", "namespace", "pod", "instance", "job", "run_namespace"}
OF_DCGM = {"UUID", "gpu", "Hostname", "hostname", "exported_namespace", "exported_pod"}
MADE_HERE = {"node"}
KNOWN = {"run", *(each for labels in OURS.values() for each in labels), *OF_THE_SCRAPE, *OF_DCGM}

NOT_SHOWN = {
    "mwatch_attempt_start_timestamp_seconds",
    "mwatch_consumed_samples",
    "mwatch_controller_sight_age_seconds",
}
"""Redundant with what is shown (the attempt, the iteration), or deprecated."""

SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
LIST = re.compile(r"\b(?:by|on|group_left|ignoring)\s*\(([\w, ]*)\)")
NAME = re.compile(r"\b(?:mwatch|DCGM|up|scrape)\w*\b")
LEGEND = re.compile(r"\{\{(\w+)\}\}")


def test_metrics_exist() -> None:
    for query in EVERY:
        found = set(NAME.findall(re.sub(r'"[^"]*"', "", query.expr)))
        assert found, query.name
        assert found <= OURS.keys() | DCGM | OF_PROMETHEUS, query.name


def test_every_metric_of_the_hardware_and_the_job_is_shown_somewhere() -> None:
    shown = {name for query in EVERY for name in NAME.findall(query.expr)}
    assert OURS.keys() - shown == NOT_SHOWN


def test_labels_exist_on_the_metric_that_is_picked_by_them() -> None:
    for query in EVERY:
        for metric, inside in SELECTOR.findall(query.expr):
            labels = set(LABEL.findall(inside))
            assert labels <= OURS[metric] | OF_THE_SCRAPE, (query.name, metric)


def test_every_series_of_ours_is_picked_by_its_place_and_by_run_if_it_is_of_one() -> None:
    for query in EVERY:
        picked = {metric for metric, _ in SELECTOR.findall(query.expr)}
        named = {name for name in NAME.findall(query.expr) if name.startswith("mwatch_")}
        assert named <= picked, query.name
        for metric, inside in SELECTOR.findall(query.expr):
            wanted = {"cluster", "namespace"} | (set() if metric in OF_CONTROLLER else {"run"})
            assert wanted <= set(LABEL.findall(inside)), query.name


def test_labels_that_are_joined_or_kept_exist() -> None:
    for query in EVERY:
        named = {each for part in LIST.findall(query.expr) for each in re.findall(r"\w+", part)}
        assert named <= KNOWN | MADE_HERE, query.name


def test_legends_use_labels_that_exist() -> None:
    for board in boards().values():
        for panel in panels(board):
            for target in panel["targets"]:
                named = set(LEGEND.findall(target.get("legendFormat", "")))
                assert named <= KNOWN | MADE_HERE, panel["title"]


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    try:
        promtool = debian_tool("prometheus", "promtool")
    except ToolMissing as error:
        pytest.skip(str(error))
    rules = [
        {"record": f"q:{number}", "expr": each.filled(run="r", namespace="n", pod="p", **TIMES)}
        for number, each in enumerate(EVERY)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")
    line = [str(promtool), "check", "rules", "--lint=none", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(EVERY)} rules found" in done.stdout
