# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One name, four artefacts: alert, promtool test, runbook and panel; and only what is exported."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.generate import (
    OBJECT,
    RUNBOOKS,
    Links,
    completed,
    generate,
    prometheus_rule,
    rule_files,
)
from mwatch.config.catalogue import load
from mwatch.detect import ALL as DETECTORS
from mwatch.export.metrics import catalog
from mwatch.export.metrics.catalog import ALL as METRICS
from mwatch.model.finding import Severity
from mwatch.model.phase import JobPhase
from support.repository.alert_rules import FOLDER, Rule, alerts, read_rules, rule
from support.repository.metric_labels import LABELS
from support.repository.source_rules import ROOT

RULES = read_rules()
ALERTS = alerts()
NAMES = {each.name for each in ALERTS}
PAGES = {page.stem: page for page in (ROOT / "runbooks").glob("Mwatch*.md")}
SECTIONS = ["Meaning", "Impact", "Example", "Diagnosis", "Mitigation"]
TOPICS = {"stall", "numerics", "hardware", "fabric", "checkpoint", "restart", "goodput", "self"}
TOPICS |= {"controller"}
SCRAPE = {"cluster", "namespace", "pod", "job", "instance"}
CATALOGUE = load()
CONTROLLER = {"run_namespace", "run_pod"}
OF_CONTROLLER = {each.name: set(each.labels) for each in catalog.CONTROLLER}
EXPORTED = {each.name: {"run", *each.labels} for each in METRICS} | OF_CONTROLLER
RECORDED = {each.name for each in RULES if not each.is_alert}
PER_RUN = {"cluster", "namespace", "run"}
VALUES = {
    "finding": {each.name for each in DETECTORS},
    "severity": {each.value for each in Severity},
    "phase": {each.value for each in JobPhase},
}


def unknown_words(each: Rule) -> list[str]:
    """Metrics, labels and values in an expression that nobody exports."""
    found = [f"{name}: no such metric" for name in each.metrics - EXPORTED.keys() - RECORDED]
    for metric, label, value in each.matchers:
        known = EXPORTED.get(metric, LABELS) | SCRAPE | CONTROLLER
        if label not in known:
            found.append(f"{metric} has no label {label}")
        choice = VALUES.get(label, set(value.split("|")))
        found += [f"no {label} is called {word}" for word in set(value.split("|")) - choice]
    known = LABELS | SCRAPE | CONTROLLER
    return found + [f"{label}: no such label" for label in each.grouped_by - known]


def promtool_cases() -> list[tuple[str, bool]]:
    """Name of the alert and whether it is to fire, of each case in the test files."""
    files = sorted((ROOT / "tests" / "alerts").glob("*.test.yaml"))
    tests = [test for path in files for test in yaml.safe_load(path.read_text("utf-8"))["tests"]]
    return [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in tests
        for case in test.get("alert_rule_test", [])
    ]


def is_of_run(each: Rule) -> bool:
    return each.name != "MwatchManyRunsStalled" and not each.metrics & OF_CONTROLLER.keys()


def test_there_are_enough_alerts_over_all_topics_and_few_of_them_page() -> None:
    assert len(ALERTS) >= 20
    assert len(NAMES) == len(ALERTS)
    assert {each.body["labels"]["topic"] for each in ALERTS} == TOPICS
    paging = [each for each in ALERTS if each.body["labels"]["severity"] == "critical"]
    assert 0 < len(paging) <= len(ALERTS) / 3


@pytest.mark.parametrize("each", ALERTS, ids=lambda each: each.name)
def test_an_alert_is_whole(each: Rule) -> None:
    body = each.body
    assert re.fullmatch(r"Mwatch([A-Z][a-z]+)+", each.name)
    assert each.file == f"{body['labels']['topic']}.rules.yaml"
    assert set(body["labels"]) == {"severity", "topic"}
    assert body["labels"]["severity"] in VALUES["severity"]
    of_run = {"incident", "command"} if is_of_run(each) else set()
    assert set(body["annotations"]) == {"summary", "description", "runbook_url"} | of_run
    assert body["annotations"]["runbook_url"] == f"{RUNBOOKS}/{each.name}.md"
    said = body["annotations"]["summary"] + body["annotations"]["description"]
    if each.name != "MwatchManyRunsStalled":
        is_of_controller = bool(each.metrics & OF_CONTROLLER.keys())
        assert f"{{{{ $labels.{'namespace' if is_of_controller else 'run'} }}}}" in said


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_an_expression_names_only_what_is_exported(each: Rule) -> None:
    assert unknown_words(each) == []


def test_the_checker_sees_what_nobody_exports() -> None:
    wrong = 'max by (run, colour) (mwatch_los{run="a"}) + mwatch_blind{rank="1", finding="tired"}'
    assert sorted(unknown_words(rule("x.rules.yaml", {"alert": "X", "expr": wrong}))) == [
        "colour: no such label",
        "mwatch_blind has no label finding",
        "mwatch_blind has no label rank",
        "mwatch_los: no such metric",
        "no finding is called tired",
    ]


@pytest.mark.parametrize("each", ALERTS, ids=lambda each: each.name)
def test_a_page_is_for_the_run_and_not_for_a_pod(each: Rule) -> None:
    if each.body["labels"]["severity"] == "critical":
        raw = {name for name in each.metrics if name in EXPORTED}
        labels = "cluster, namespace" if raw & OF_CONTROLLER.keys() else "cluster, namespace, run"
        whole = f"max by ({labels}) ("
        assert not raw or whole in each.expr
        assert each.grouped_by <= PER_RUN


def test_every_detector_is_noticed() -> None:
    heard = {
        word
        for each in ALERTS
        for matcher in each.matchers
        if matcher.label == "finding"
        for word in matcher.value.split("|")
    }
    # These two are recorded first: all pods of a run have a say.
    recorded = {each.name for each in RULES if "stalled" in each.name or "blind" in each.name}
    assert recorded & {name for each in ALERTS for name in each.metrics}
    assert heard | {"stalled", "blind"} == VALUES["finding"]


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = Counter(promtool_cases())
    assert {name for name, _ in cases} == NAMES
    assert [name for name in sorted(NAMES) if not cases[name, True]] == []
    assert [name for name in sorted(NAMES) if not cases[name, False]] == []


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert set(PAGES) == NAMES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_its_sections_and_commands_to_type(name: str) -> None:
    text = PAGES[name].read_text("utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS
    diagnosis = text.partition("## Diagnosis")[2].partition("## Mitigation")[0]
    assert re.search(r"`mwatch [a-z]+", diagnosis)
    assert re.search(r"`kubectl [a-z-]", diagnosis)


def test_a_page_names_only_faults_that_there_are() -> None:
    known = {entry.id for entry in CATALOGUE} | {str(entry.xid) for entry in CATALOGUE} | {"ID"}
    for name, page in PAGES.items():
        for code in re.findall(r"`([^`]+)`", page.read_text("utf-8")):
            for argument in re.findall(r"\bmwatch faults ([\w.-]+)", code):
                assert argument.startswith("-") or argument in known, name


def test_the_list_of_pages_has_each_alert_with_its_severity() -> None:
    listed = re.findall(
        r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|",
        (ROOT / "runbooks" / "README.md").read_text("utf-8"),
        re.M,
    )
    severities = {(each.name, each.name, each.body["labels"]["severity"]) for each in ALERTS}
    assert set(listed) == severities


def test_each_alert_has_a_panel_and_each_panel_names_only_alerts() -> None:
    boards = [path.read_text("utf-8") for path in (ROOT / "dashboards").glob("*.json")]
    named = {name for text in boards for name in re.findall(r"\bMwatch[A-Z][A-Za-z]+\b", text)}
    assert named == NAMES
    assert {link for text in boards for link in re.findall(r'https://[^"]+/runbooks\b', text)} == {
        RUNBOOKS
    }


def test_what_is_generated_is_fresh(tmp_path: Path) -> None:
    for name, text in rule_files().items():
        (tmp_path / name).write_text(text, "utf-8")
    generate(tmp_path)
    made = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    here = {name: (FOLDER / name).read_text("utf-8") for name in made}
    assert made == here, "run python -m alerts.generate"


def test_the_object_for_the_operator_holds_the_same_rules() -> None:
    made: dict[str, Any] = yaml.safe_load((FOLDER / OBJECT).read_text("utf-8"))
    plain = [yaml.safe_load(text)["groups"] for text in rule_files().values()]
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["spec"]["groups"] == [group for groups in plain for group in groups]


def test_the_links_lead_where_the_user_keeps_runbooks_dashboards_and_pages() -> None:
    links = Links("https://wiki.lab/x/", "https://grafana.lab/", "https://mwatch.lab")
    files = {name: completed(text, links) for name, text in rule_files().items()}
    made = prometheus_rule(files)
    assert made.count("runbook_url: https://wiki.lab/x/Mwatch") == len(ALERTS)
    assert RUNBOOKS not in made
    of_run = sum(is_of_run(each) for each in ALERTS)
    dashboard = (
        "/d/mwatch-run?var-cluster={{ $labels.cluster }}"
        "&var-namespace={{ $labels.namespace }}&var-run={{ $labels.run }}\n"
    )
    assert made.count(f"dashboard_url: https://grafana.lab{dashboard}") == of_run
    page = "/jobs/{{ $labels.namespace }}/{{ $labels.run }}\n"
    assert made.count(f"page_url: https://mwatch.lab{page}") == of_run
    assert yaml.safe_load(made)["spec"]["groups"]
    assert {name: completed(text) for name, text in files.items()} == rule_files()
