# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The real Prometheus and Alertmanager, as a test starts them: fast, small, on this machine only.

Nothing is faked here but time: scrapes and rules come each second, and the `for` of alerts is cut
down in a copy of the rules, since a test cannot wait for minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from monitoring.server import Server, serving
from monitoring.unpacked_alertmanager import runnable
from support.debian_tools import debian_tool

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "alerts"
SCRAPE_SECONDS = 1
_WAIT = re.compile(r"^(\s+for:).*$", re.MULTILINE)


class Target(NamedTuple):
    job: str
    address: str
    labels: Mapping[str, str] = MappingProxyType({})
    """As a service discovery would add them: namespace, pod."""


def quick_rules(folder: Path) -> Path:
    """A copy of our rules in which no alert waits longer than a second."""
    for path in sorted(RULES.glob("*.rules.yaml")):
        text = path.read_text("utf-8")
        (folder / path.name).write_text(_WAIT.sub(r"\1 1s", text), "utf-8")
    return folder


@contextmanager
def prometheus(
    folder: Path, targets: Sequence[Target], *, rules: Path | None, alertmanager: str | None
) -> Iterator[Server]:
    binary = debian_tool("prometheus", "prometheus")
    configuration = folder / "prometheus.yml"
    described: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "scrape_timeout": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": "1s",
        },
        "scrape_configs": [_scrape(each) for each in targets],
    }
    if rules is not None:
        described["rule_files"] = [f"{rules}/*.rules.yaml"]
    if alertmanager is not None:
        manager = {"static_configs": [{"targets": [alertmanager]}]}
        described["alerting"] = {"alertmanagers": [manager]}
    configuration.write_text(json.dumps(described), "utf-8")  # JSON is YAML too

    def command(port: int) -> list[str]:
        return [
            str(binary), f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn", "--rules.alert.resend-delay=1s",
        ]  # fmt: skip

    with serving(command, "/-/ready", folder, "prometheus") as server:
        yield server


def _scrape(target: Target) -> dict[str, Any]:
    where = {"targets": [target.address], "labels": dict(target.labels)}
    # dcgm-exporter's own labels name the trainer's pod.
    return {"job_name": target.job, "honor_labels": True, "static_configs": [where]}


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[Server]:
    """`webhook` is where it sends what fires."""
    binary = runnable(folder)
    configuration = folder / "alertmanager.yml"
    route = {
        "receiver": "webhook", "group_by": ["alertname", "run"],
        "group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h",
    }  # fmt: skip
    sends = {"name": "webhook", "webhook_configs": [{"url": webhook, "send_resolved": True}]}
    configuration.write_text(json.dumps({"route": route, "receivers": [sends]}), "utf-8")

    def command(port: int) -> list[str]:
        return [
            str(binary), f"--config.file={configuration}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
            "--log.level=warn",
        ]  # fmt: skip

    with serving(command, "/-/ready", folder, "alertmanager") as server:
        yield server
