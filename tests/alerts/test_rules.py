# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""promtool: the rules are valid, each fires and stays quiet where it should, and 512 pods are one.

The cases are in `*.test.yaml`, each with its reason. A real promtool takes some seconds for them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.debian_tools import debian_tool
from support.repository.alert_rules import FOLDER

SECONDS = 120
CASES = sorted(Path(__file__).parent.glob("*.test.yaml"))
PODS = 512


@pytest.fixture(scope="module")
def promtool() -> Path:
    if shutil.which("apt-get") is None and shutil.which("promtool") is None:
        pytest.skip("this machine has neither apt-get nor promtool")
    return debian_tool("prometheus", "promtool")


def run(promtool: Path, *words: str | Path) -> None:
    done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid(promtool: Path) -> None:
    run(promtool, "check", "rules", *sorted(FOLDER.glob("*.rules.yaml")))


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.name.partition(".")[0])
def test_the_cases_of(cases: Path, promtool: Path) -> None:
    run(promtool, "test", "rules", cases)


def stalled_pod(number: int) -> list[dict[str, str]]:
    """What the sidecar of one pod exports of a run that hangs, with one GPU for brevity."""
    place = f'run="gpt", namespace="lab", pod="gpt-{number}", job="mwatch", instance="{number}"'
    gpu = f'{place}, rank="{number}", gpu="0", UUID="GPU-{number}"'
    values = {
        f"mwatch_last_look_timestamp_seconds{{{place}}}": "0+30x20",
        f"mwatch_last_progress_timestamp_seconds{{{place}}}": "0x20",
        f"mwatch_hang_deadline_seconds{{{place}}}": "20x20",
        f'mwatch_rank_iteration{{{place}, rank="{number}"}}': "500x20",
        f'mwatch_finding{{{place}, finding="stalled", severity="critical"}}': "0 1x19",
        f"mwatch_blind{{{place}}}": "0x20",
        f"mwatch_gpu_up{{{gpu}}}": "1x20",
    }
    return [{"series": series, "values": text} for series, text in values.items()]


def controller(number: int) -> list[dict[str, str]]:
    """What a controller exports of the same run; the second of them only looks on."""
    scrape = f'namespace="lab", pod="c-{number}", job="controller", instance="c{number}"'
    place = f'run="gpt", run_namespace="lab", {scrape}'
    values = {
        f"mwatch_controller_leader{{{scrape}}}": "0x20" if number else "1x20",
        f'mwatch_controller_jobs{{{scrape}, state="act"}}': "1x20",
        f'mwatch_controller_view_age_seconds{{{scrape}, resource="pods"}}': "5x20",
        f"mwatch_controller_cpu_seconds_total{{{scrape}}}": "0+1x20",
        f"mwatch_last_look_timestamp_seconds{{{place}}}": "0+30x20",
        f"mwatch_last_progress_timestamp_seconds{{{place}}}": "0x20",
        f"mwatch_hang_deadline_seconds{{{place}}}": "20x20",
        f'mwatch_finding{{{place}, finding="stalled", severity="critical"}}': "0 1x19",
        f"mwatch_blind{{{place}}}": "0x20",
        f"mwatch_acting{{{place}}}": "1x20",
        **{name: f"{value}x20" for name, value in whole_run(place).items()},
    }
    return [{"series": series, "values": text} for series, text in values.items()]


def whole_run(place: str) -> dict[str, float]:
    """Said of the run as a whole by each pod, and by each controller."""
    return {
        f"mwatch_world_size{{{place}}}": 8,
        f"mwatch_tokens_per_second{{{place}}}": 4000,
        f"mwatch_attempt{{{place}}}": 2,
        f'mwatch_phase{{{place}, phase="training"}}': 1,
        f"mwatch_restart_budget_remaining{{{place}}}": 3,
    }


def check(promtool: Path, folder: Path, series: list[dict[str, str]], *expected: Any) -> None:
    """`expected`: PromQL, labels and value of its one result, after five minutes."""
    samples = [
        {"expr": expr, "eval_time": "5m", "exp_samples": [{"labels": labels, "value": value}]}
        for expr, labels, value in expected
    ]
    described = {
        "rule_files": [str(path) for path in sorted(FOLDER.glob("*.rules.yaml"))],
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": series, "promql_expr_test": samples}],
    }
    file = folder / "many.test.yaml"
    file.write_text(json.dumps(described), "utf-8")  # JSON is YAML too
    run(promtool, "test", "rules", file)


ONE_PAGE = (
    "count by (alertname, severity, namespace, run) (ALERTS)",
    '{alertname="MwatchStalled", severity="critical", namespace="lab", run="gpt"}',
    1,
)


@pytest.mark.timeout(SECONDS)
def test_a_hang_seen_by_512_pods_is_one_alert(promtool: Path, tmp_path: Path) -> None:
    """And no other one, of any severity: not for a pod, a GPU or a watcher."""
    series = [each for number in range(PODS) for each in stalled_pod(number)]
    check(promtool, tmp_path, series, ONE_PAGE)


def test_a_run_that_8_sidecars_and_2_controllers_report_is_paged_and_counted_once(
    promtool: Path, tmp_path: Path
) -> None:
    series = [each for number in range(8) for each in stalled_pod(number)]
    series += [each for number in range(2) for each in controller(number)]
    for number in range(8):
        place = f'run="gpt", namespace="lab", pod="gpt-{number}", job="mwatch", instance="{number}"'
        said = whole_run(place).items()
        series += [{"series": name, "values": f"{value}x20"} for name, value in said]
    of_run = '{namespace="lab", run="gpt"}'
    # MwatchRestartHeld waits: should the controller not restart the run within 20 minutes.
    firing = (ONE_PAGE[0].replace("ALERTS", 'ALERTS{alertstate="firing"}'), *ONE_PAGE[1:])
    check(
        promtool, tmp_path, series, firing,
        *(
            (name, f"{name}{of_run}", value)
            for name, value in {
                "mwatch:run_pods:count": 8,
                "mwatch:run_stalled:max": 1,
                "mwatch:run_world_size:max": 8,
                "mwatch:run_attempt:max": 2,
                "mwatch:run_restart_budget:min": 3,
            }.items()
        ),
        *(
            (name, name, value)
            for name, value in {
                "mwatch:fleet_runs:count": 1,
                "mwatch:fleet_runs_stalled:count": 1,
                "mwatch:fleet_ranks:sum": 8,
                "mwatch:fleet_tokens_per_second:sum": 4000,
                "mwatch:fleet_restarts:increase1h": 0,
            }.items()
        ),
    )  # fmt: skip
