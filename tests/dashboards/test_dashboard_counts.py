# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A run that eight sidecars and two controllers tell of is one run on every dashboard.

The queries are those of the panels; promtool answers them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monitoring.panel_queries import TIMES, queries
from support.debian_tools import ToolMissing, debian_tool

PODS = 8
MADE = {(each.board, each.panel, each.ref): each for each in queries()}
OF_RUN = '{namespace="lab", run="gpt"}'
# Sidecars of new pods have seen one incident and restarted nothing; the controller has seen it all.
EXPECTED = [
    (("fleet", "Runs", "A"), "{}", 1),
    (("fleet", "Ranks in training", "A"), "{}", PODS),
    (("fleet", "Blind runs", "A"), "{}", 0),
    (("fleet", "Incidents by cause", "A"), '{cause="hang", action="restart"}', 2),
    (("fleet", "All runs", "G"), OF_RUN, 0.6),
    (("fleet", "All runs", "J"), OF_RUN, 3),
    (("goodput", "Goodput of the fleet", "A"), "{}", 0.6),
    (("goodput", "Time lost", "A"), "{}", 4000),
    (("goodput", "Rank hours lost", "A"), "{}", 4000 * PODS / 3600),
    (("mwatch", "Sidecars of each run", "A"), OF_RUN, PODS),
]


def told(place: str, *, is_controller: bool) -> dict[str, str]:
    values = {
        "mwatch_last_look_timestamp_seconds{%s}": "0+30x20",
        "mwatch_world_size{%s}": f"{PODS}x20",
        "mwatch_blind{%s}": "0x20",
        'mwatch_phase{%s, phase="training"}': "1x20",
        "mwatch_goodput_ratio{%s}": "0.6x20" if is_controller else "0.99x20",
        "mwatch_restart_budget_remaining{%s}": "3x20" if is_controller else "5x20",
        'mwatch_badput_seconds_total{%s, reason="saving"}': "4000x20" if is_controller else "10x20",
    }
    if is_controller:
        values['mwatch_incidents_total{%s, cause="hang", action="restart"}'] = "2x20"
    else:
        values['mwatch_incidents_total{%s, cause="hang", action="none"}'] = "1x20"
    return {name % place: value for name, value in values.items()}


def series() -> list[dict[str, str]]:
    made: dict[str, str] = {}
    for number in range(PODS):
        place = f'run="gpt", namespace="lab", pod="gpt-{number}", job="m", instance="{number}"'
        made |= told(place, is_controller=False)
    for number in range(2):
        place = f'namespace="lab", pod="c-{number}", job="c", instance="c{number}"'
        made |= told(f'run="gpt", run_namespace="lab", {place}', is_controller=True)
    return [{"series": name, "values": values} for name, values in made.items()]


def ask(folder: Path, series: list[dict[str, str]], expected: list[tuple[str, str, float]]) -> None:
    """`expected`: PromQL, labels and value of its one result, after five minutes."""
    try:
        promtool = debian_tool("prometheus", "promtool")
    except ToolMissing as error:
        pytest.skip(str(error))
    samples: list[dict[str, Any]] = [
        {"expr": expr, "eval_time": "5m", "exp_samples": [{"labels": labels, "value": value}]}
        for expr, labels, value in expected
    ]
    tests = [{"interval": "30s", "input_series": series, "promql_expr_test": samples}]
    file = folder / "counts.test.yaml"
    file.write_text(json.dumps({"rule_files": [], "tests": tests}), "utf-8")
    line = [str(promtool), "test", "rules", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def filled(name: tuple[str, str, str], run: str) -> str:
    return MADE[name].filled(run=run, namespace=".*", pod=".*", **TIMES)


def test_one_run_is_counted_once_whoever_reports_it(tmp_path: Path) -> None:
    expected = [(filled(name, ".*"), labels, value) for name, labels, value in EXPECTED]
    ask(tmp_path, series(), expected)


def test_runs_of_the_same_name_in_two_clusters_are_two(tmp_path: Path) -> None:
    both = [
        {
            "series": each["series"].replace("{", f'{{cluster="{cluster}", '),
            "values": each["values"],
        }
        for each in series()
        for cluster in ("east", "west")
    ]
    count = MADE["fleet", "Runs", "A"]
    ask(tmp_path, both, [(count.filled(run=".*", namespace=".*", **TIMES), "{}", 2),
        (count.filled(run=".*", namespace=".*", cluster="east", **TIMES), "{}", 1)])  # fmt: skip


def test_mfu_is_the_throughput_by_the_peak_of_the_slowest_gpu(tmp_path: Path) -> None:
    found = [
        {"series": 'mwatch_throughput_tflops{run="gpt", pod="b"}', "values": "400x20"},
        {"series": 'mwatch_gpu_peak_tflops{run="gpt", pod="a", UUID="1"}', "values": "1000x20"},
        {"series": 'mwatch_gpu_peak_tflops{run="gpt", pod="b", UUID="2"}', "values": "800x20"},
    ]
    ask(tmp_path, found, [(filled(("run", "MFU", "A"), "gpt"), '{run="gpt"}', 0.5)])


def test_of_many_ranks_the_worst_are_shown(tmp_path: Path) -> None:
    behind = filled(("gpu-network", "Iterations behind the fastest rank", "A"), "gpt")
    ranks = [
        {"series": f'mwatch_rank_iteration{{run="gpt", rank="{rank}"}}', "values": f"{rank}x20"}
        for rank in range(100)
    ]
    ask(tmp_path, ranks, [(f"count({behind})", "{}", 64), (f"min({behind})", "{}", 99 - 63)])
