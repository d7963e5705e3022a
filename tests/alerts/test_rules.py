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

import pytest

from alert_rules import FOLDER
from debian_tools import debian_tool

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


@pytest.mark.timeout(SECONDS)
def test_a_hang_seen_by_512_pods_is_one_alert(promtool: Path, tmp_path: Path) -> None:
    """And no other one, of any severity: not for a pod, a GPU or a watcher."""
    stalled = '{alertname="MwatchStalled", severity="critical", namespace="lab", run="gpt"}'
    test = {
        "interval": "30s",
        "input_series": [series for number in range(PODS) for series in stalled_pod(number)],
        "promql_expr_test": [
            {
                "expr": "count by (alertname, severity, namespace, run) (ALERTS)",
                "eval_time": "5m",
                "exp_samples": [{"labels": stalled, "value": 1}],
            }
        ],
    }
    described = {
        "rule_files": [str(path) for path in sorted(FOLDER.glob("*.rules.yaml"))],
        "evaluation_interval": "30s",
        "tests": [test],
    }
    file = tmp_path / "many.test.yaml"
    file.write_text(json.dumps(described), "utf-8")  # JSON is YAML too
    run(promtool, "test", "rules", file)
