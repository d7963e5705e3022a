# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The example for Alertmanager: valid, routed by severity, and one page for one fault.

The last test starts the real Alertmanager with the example itself. Only where Slack and PagerDuty
are, the files of their keys, and the time it waits for a group's first alerts are replaced.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from monitoring.server import Server, serving
from monitoring.unpacked_alertmanager import runnable
from support.debian_tools import debian_tool
from support.repository.alert_rules import FOLDER, alerts

EXAMPLE = FOLDER / "alertmanager.example.yaml"
ALERTS = {each.name: each for each in alerts()}
SECONDS = 180
PODS = 512
RUN = {"namespace": "lab", "run": "gpt"}
SYMPTOMS = ["MwatchRankSilent", "MwatchNcclRankMissing", "MwatchGoodputLow"]


@pytest.fixture(scope="module")
def amtool() -> Path:
    if shutil.which("apt-get") is None and shutil.which("amtool") is None:
        pytest.skip("this machine has neither apt-get nor amtool")
    return debian_tool("prometheus-alertmanager", "amtool")


def ask(amtool: Path, *words: str | Path) -> str:
    done = subprocess.run([amtool, *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_is_valid(amtool: Path) -> None:
    assert "SUCCESS" in ask(amtool, "check-config", EXAMPLE)


@pytest.mark.parametrize(
    ("severity", "receivers"),
    [("critical", "pagerduty,slack"), ("warning", "slack"), ("info", "nobody")],
)
def test_who_hears_of(severity: str, receivers: str, amtool: Path) -> None:
    labels = ["alertname=MwatchAny", f"severity={severity}", "namespace=lab", "run=gpt"]
    routed = ask(amtool, "config", "routes", "test", f"--config.file={EXAMPLE}", *labels)
    assert routed.split() == [receivers]


def test_the_example_names_only_alerts_that_there_are() -> None:
    text = EXAMPLE.read_text("utf-8")
    assert set(re.findall(r"\bMwatch[A-Z]\w+", text)) - set(ALERTS) == set()


def test_a_page_silences_no_other_page_but_what_follows_from_it() -> None:
    """Whoever hides a critical alert is one: nothing that only warns may swallow a page."""
    pages = {name for name, each in ALERTS.items() if is_page(each.body)}
    for each in yaml.safe_load(EXAMPLE.read_text("utf-8"))["inhibit_rules"]:
        sources, targets = (
            set(re.findall(r"\bMwatch[A-Z]\w+", " ".join(each[side])))
            for side in ("source_matchers", "target_matchers")
        )
        assert not targets & pages or sources <= pages


def is_page(body: dict[str, Any]) -> bool:
    return bool(body["labels"]["severity"] == "critical")


class Desk:
    """Stands for Slack and PagerDuty: takes whatever is sent, by the path it came to."""

    def __init__(self) -> None:
        self.slack: queue.Queue[dict[str, Any]] = queue.Queue()
        self.pager: queue.Queue[dict[str, Any]] = queue.Queue()
        self.url = ""


@contextmanager
def listening() -> Iterator[Desk]:
    desk = Desk()

    class Handler(BaseHTTPRequestHandler):
        timeout = 60

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (desk.pager if self.path == "/pager" else desk.slack).put(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """A message is no news for the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        desk.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield desk
        finally:
            server.shutdown()
            thread.join(10)


@contextmanager
def alertmanager(folder: Path, desk: Desk) -> Iterator[Server]:
    text = EXAMPLE.read_text("utf-8")
    (folder / "slack").write_text(f"{desk.url}/slack", "utf-8")
    (folder / "key").write_text("no-key", "utf-8")
    for was, now in {
        "/etc/alertmanager/secrets/slack-url": str(folder / "slack"),
        "/etc/alertmanager/secrets/pagerduty-key": str(folder / "key"),
        "\nglobal:\n": f"\nglobal:\n  pagerduty_url: {desk.url}/pager\n",
        "group_wait: 30s": "group_wait: 5s",
    }.items():
        assert was in text
        text = text.replace(was, now)
    (folder / "alertmanager.yaml").write_text(text, "utf-8")
    shutil.copy(FOLDER / "alertmanager.tmpl", folder)
    binary = runnable(folder)

    def command(port: int) -> list[str]:
        return [
            str(binary), f"--config.file={folder / 'alertmanager.yaml'}",
            f"--storage.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=", "--log.level=warn",
        ]  # fmt: skip

    with serving(command, "/-/ready", folder, "alertmanager") as server:
        yield server


def firing(name: str, **labels: str) -> dict[str, Any]:
    """As Prometheus sends it, with the values left in their templates."""
    body = ALERTS[name].body
    incident = {"incident": "Cause: hang (stalled). Culprit: rank 3, pod gpt-3."}
    return {
        "labels": {"alertname": name, **RUN, **body["labels"], **labels},
        "annotations": body["annotations"] | incident,
    }


def of_controller(name: str) -> dict[str, Any]:
    made = firing(name)
    del made["labels"]["run"]
    return made


def send(server: Server, alerts: list[dict[str, Any]]) -> None:
    body = json.dumps(alerts).encode()
    url = f"http://{server.address}/api/v2/alerts"
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
        assert answer.status == 200


@pytest.mark.usefixtures("amtool")  # of the same package: it is fetched before the time runs
@pytest.mark.timeout(SECONDS)
def test_a_hang_of_512_pods_is_one_page_and_one_message(tmp_path: Path) -> None:
    hot = [firing("MwatchGpuHot", pod=f"gpt-{pod}", UUID=f"GPU-{pod}") for pod in range(PODS)]
    every = [firing("MwatchStalled"), *map(firing, SYMPTOMS), *hot]
    with listening() as desk, alertmanager(tmp_path, desk) as server:
        send(server, every)
        page = desk.pager.get(timeout=60)["payload"]
        (message,) = desk.slack.get(timeout=60)["attachments"]
        groups = server.get("/api/v2/alerts/groups", inhibited="true")
    assert (desk.pager.qsize(), desk.slack.qsize()) == (0, 0)
    assert page["summary"] == "1 firing: run gpt in lab"
    assert "runbooks/MwatchStalled.md" in page["custom_details"]["alerts"]
    assert "\nType: mwatch diagnose " in page["custom_details"]["alerts"]
    assert "\nCause: " in page["custom_details"]["alerts"]
    assert "Dashboard:" not in page["custom_details"]["alerts"], "no address of Grafana is known"
    assert message["title"] == f"{PODS + 1} firing: run gpt in lab"
    assert f"and more: {PODS + 1} in all." in message["text"]
    silenced = {
        alert["labels"]["alertname"]
        for group in groups
        for alert in group["alerts"]
        if alert["status"]["inhibitedBy"]
    }
    assert silenced == set(SYMPTOMS)


@pytest.mark.usefixtures("amtool")
@pytest.mark.timeout(SECONDS)
def test_a_controller_that_may_not_act_is_reported_once_and_not_for_each_run_it_leaves(
    tmp_path: Path,
) -> None:
    held = [firing("MwatchRestartHeld", run=f"gpt-{number}") for number in range(3)]
    with listening() as desk, alertmanager(tmp_path, desk) as server:
        send(server, [of_controller("MwatchControllerNoLeader"), *held])
        (message,) = desk.slack.get(timeout=60)["attachments"]
        groups = server.get("/api/v2/alerts/groups", inhibited="true")
    assert message["title"] == "1 firing: controller of lab"
    silenced = [
        alert["labels"]["run"]
        for group in groups
        for alert in group["alerts"]
        if alert["status"]["inhibitedBy"]
    ]
    assert sorted(set(silenced)) == ["gpt-0", "gpt-1", "gpt-2"]
    assert (desk.pager.qsize(), desk.slack.qsize()) == (0, 0)
