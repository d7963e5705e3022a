# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A stall of a real training, from the trainer to the pager, through real servers."""

from __future__ import annotations

from monitoring import fake_pod
from monitoring.live_training import RUN
from monitoring.watched_run import STALLED, Watched


def test_the_stall_reaches_alertmanager_with_the_run_and_its_severity(watched: Watched) -> None:
    (alert,) = watched.sent
    assert alert["labels"]["run"] == RUN
    assert alert["labels"]["severity"] == "critical"
    assert alert["status"]["state"] == "active"


def test_the_stall_reaches_the_webhook_and_is_taken_back_after_the_restart(
    watched: Watched,
) -> None:
    assert watched.receiver.alerts(STALLED, fake_pod.RUN) == []
    sent = watched.receiver.alerts(STALLED, RUN)
    assert sent[0]["status"] == "firing"
    assert sent[-1]["status"] == "resolved"
    assert RUN in sent[0]["annotations"]["summary"]
    assert sent[0]["annotations"]["incident"].startswith("Cause: hang (")
    # The alert may be sent in the moment between the finding and the decision: it then says `none`.
    found = watched.values(f'mwatch_incident_info{{run="{RUN}",cause="hang"}}', is_instant=False)
    actions = {each["metric"]["action"] for each in found}
    assert "restart" in actions
    said = sent[0]["annotations"]["incident"].partition("Action: ")[2].split(" ")[0].rstrip(".")
    assert said in actions | {"none"}
    assert sent[0]["annotations"]["command"] == f"mwatch diagnose {RUN}"


def test_the_run_was_restarted_once_and_for_the_hang(watched: Watched) -> None:
    found = watched.values(f'mwatch_incidents_total{{run="{RUN}"}} > 0', is_instant=True)
    assert ("hang", "restart") in {
        (each["metric"]["cause"], each["metric"]["action"]) for each in found
    }


def test_a_controller_that_is_well_raises_no_alert(watched: Watched) -> None:
    found = watched.values('ALERTS{alertname=~"MwatchController.*"}', is_instant=False)
    assert [each["metric"]["alertname"] for each in found] == []


def test_no_rule_is_an_error(watched: Watched) -> None:
    groups = watched.prometheus.get("/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


def test_all_targets_are_scraped(watched: Watched) -> None:
    up = watched.values("max_over_time(up[10s])", is_instant=True)
    assert {each["metric"]["job"]: each["value"][1] for each in up} == {
        "mwatch": "1", "mwatch-pods": "1", "mwatch-controller": "1",
        "dcgm-old": "1", "dcgm-new": "1",
    }  # fmt: skip
