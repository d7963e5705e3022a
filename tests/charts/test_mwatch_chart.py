# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""mwatch's own chart: the same rights, rules and dashboards as the repository, in each variant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts.generate import Links, completed, prometheus_rule, rule_files
from manifests.generate import FILES, ROOT, SOURCES, wanted
from support.repository.chart_renders import CHARTS, NO_HELM, Refused, helm, only, rendered, sets

CHART = CHARTS / "mwatch"
needs_helm = pytest.mark.skipif(helm() is None, reason=NO_HELM)
OPERATOR = ["--api-versions", "monitoring.coreos.com/v1/PodMonitor"]
OPERATOR += ["--api-versions", "monitoring.coreos.com/v1/PrometheusRule"]
AZURE = ["--api-versions", "azmonitoring.coreos.com/v1/PodMonitor"]
NODES = sets("rbac.nodesRead=true", "rbac.nodesCordon=true", "rbac.people=true")
NODES += sets("networkPolicy.enabled=true")
# Objects of the cluster carry the namespace, or two releases would fight over one name.
SHARED = {"ClusterRole", "ClusterRoleBinding"}
SHARED |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pod(*words: str) -> dict[str, Any]:
    return dict(only(rendered(CHART, *words), "Deployment")["spec"]["template"])


def test_the_chart_has_fresh_copies_of_rules_dashboards_and_rights() -> None:
    found = {
        path.relative_to(ROOT): path.read_text("utf-8")
        for folder in SOURCES
        for path in (ROOT / FILES / folder).iterdir()
    }
    assert found == wanted(), "run: python -m manifests.generate"


@needs_helm
@pytest.mark.parametrize("namespace", ["training", "team-b"])
def test_the_rights_are_those_of_manifests_rbac(namespace: str) -> None:
    """Object by object; of the cluster's own only the name is another."""
    ours = {
        (each["kind"], each["metadata"]["name"]): each
        for each in rendered(CHART, *NODES, namespace=namespace)
    }
    for path in sorted((ROOT / "manifests/rbac").glob("*.yaml")):
        text = path.read_text().replace("namespace: training", f"namespace: {namespace}")
        for wish in filter(None, yaml.safe_load_all(text)):
            kind, name = wish["kind"], wish["metadata"]["name"]
            if kind in SHARED:
                wish = renamed(wish, namespace)
                name = wish["metadata"]["name"]
            assert ours[kind, name] == wish


def renamed(wish: dict[str, Any], namespace: str) -> dict[str, Any]:
    name = f"{wish['metadata']['name']}-{namespace}"
    body = {**wish, "metadata": {**wish["metadata"], "name": name}}
    if "roleRef" in wish:
        body["roleRef"] = {**wish["roleRef"], "name": f"{wish['roleRef']['name']}-{namespace}"}
    if "policyName" in wish.get("spec", {}):
        policy = f"{wish['spec']['policyName']}-{namespace}"
        body["spec"] = {**wish["spec"], "policyName": policy}
    return body


@needs_helm
def test_rights_over_nodes_are_opt_in() -> None:
    kinds = {each["kind"] for each in rendered(CHART)}
    assert "ClusterRole" not in kinds and "NetworkPolicy" not in kinds
    assert {"Role", "RoleBinding", "ServiceAccount", "ValidatingAdmissionPolicy"} <= kinds


@needs_helm
def test_policies_that_jobs_may_name_are_readable_by_name() -> None:
    role = only(rendered(CHART, *sets('rbac.policies=["mwatch-policy", "large"]')), "Role")
    named = [each.get("resourceNames") for each in role["rules"]]
    assert ["mwatch-policy", "large"] in named


@needs_helm
def test_the_controller_is_found_by_the_names_of_the_contract() -> None:
    objects = rendered(CHART)
    service, made = only(objects, "Service"), only(objects, "Deployment")
    assert service["metadata"]["name"] == "mwatch-controller"
    assert service["spec"]["ports"][0]["port"] == 9402
    label = {"app.kubernetes.io/name": "mwatch-controller"}
    assert service["spec"]["selector"] == made["spec"]["selector"]["matchLabels"] == label
    spec = made["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "mwatch-controller"
    assert spec["containers"][0]["command"][:3] == ["mwatch", "controller", "--namespace=training"]


@needs_helm
def test_the_controller_knows_every_option_that_it_is_given() -> None:
    from typer.testing import CliRunner

    from mwatch.cli.program import program

    said = CliRunner().invoke(program(), ["controller", "--help"], env={"COLUMNS": "200"}).output
    words = pod(*sets("controller.fleet=workers = 2", "controller.policy=# usual"))["spec"]
    given = [each.partition("=")[0] for each in words["containers"][0]["command"][2:]]
    assert {"--fleet", "--policy", "--evidence"} <= set(given)
    assert [each for each in given if each not in said] == []
    assert "--no-page" not in given and "--no-page" in said
    silent = pod(*sets("controller.page=false"))["spec"]["containers"][0]["command"]
    assert "--no-page" in silent


@needs_helm
def test_urls_of_notifications_come_from_a_secret_and_never_as_arguments() -> None:
    assert "env" not in pod()["spec"]["containers"][0]
    given = sets("controller.notify.secret=chat", "controller.notify.key=slack")
    given += sets("controller.notify.externalUrl=https://mwatch.example.com")
    container = pod(*given)["spec"]["containers"][0]
    (variable,) = container["env"]
    source = {"secretKeyRef": {"name": "chat", "key": "slack"}}
    assert variable == {"name": "MWATCH_NOTIFY", "valueFrom": source}
    assert container["command"][-1] == "--external-url=https://mwatch.example.com"
    assert not [each for each in container["command"] if "notify" in each]
    with pytest.raises(Refused):
        rendered(CHART, *sets("controller.notify.secret=slack://a/b/c"))


@needs_helm
def test_the_controller_asks_for_nothing_of_its_node() -> None:
    spec = pod()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    rights = spec["containers"][0]["securityContext"]
    assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]}


@needs_helm
def test_policy_and_fleet_are_files_that_the_controller_reads(tmp_path: Path) -> None:
    from mwatch.config.fleet import load

    fleet = (
        'max_restarts_at_once = 1\n[[maintenance]]\ndays = ["sun"]\nfrom = "02:00"\nto = "04:00"'
    )
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"controller": {"fleet": fleet, "policy": "# usual"}}))
    objects = rendered(CHART, "-f", str(file), *sets("monitoring.dashboards.enabled=false"))
    data = only(objects, "ConfigMap")["data"]
    (tmp_path / "fleet.toml").write_text(data["fleet.toml"])
    assert load(tmp_path / "fleet.toml").max_restarts_at_once == 1
    words = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "--fleet=/etc/mwatch/fleet.toml" in words and "--policy=/etc/mwatch/policy.toml" in words


@needs_helm
def test_other_settings_are_another_pod(tmp_path: Path) -> None:
    stamps = set()
    for number in (1, 2):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump({"controller": {"fleet": f"workers = {number}"}}))
        stamps.add(pod("-f", str(file))["metadata"]["annotations"]["mwatch.dev/settings"])
    assert len(stamps) == 2


@needs_helm
@pytest.mark.parametrize(
    ("words", "group"),
    [
        (OPERATOR, "monitoring.coreos.com/v1"),
        (AZURE, "azmonitoring.coreos.com/v1"),
        (sets("monitoring.kind=operator"), "monitoring.coreos.com/v1"),
        (sets("monitoring.kind=azure"), "azmonitoring.coreos.com/v1"),
        ([*OPERATOR, *sets("monitoring.kind=azure")], "azmonitoring.coreos.com/v1"),
    ],
)
def test_pod_monitors_are_of_the_group_that_the_cluster_knows(words: list[str], group: str) -> None:
    found = of_kind(rendered(CHART, *words), "PodMonitor")
    assert {each["apiVersion"] for each in found.values()} == {group}
    sidecars = found["mwatch-sidecars"]["spec"]
    assert sidecars["selector"]["matchLabels"] == {"mwatch.dev/watch": "true"}
    assert sidecars["podMetricsEndpoints"][0]["port"] == "mwatch"
    assert ("labelLimit" in sidecars) is group.startswith("az")
    assert "prometheus.io/scrape" not in pod(*words)["metadata"]["annotations"]


@needs_helm
def test_a_cluster_without_pod_monitors_is_scraped_by_annotations() -> None:
    assert not of_kind(rendered(CHART), "PodMonitor")
    found = pod()["metadata"]["annotations"]
    assert (found["prometheus.io/port"], found["prometheus.io/path"]) == ("9402", "/metrics")
    none = pod(*sets("monitoring.kind=none"))["metadata"]["annotations"]
    assert "prometheus.io/scrape" not in none


@needs_helm
def test_kube_prometheus_stack_finds_them_by_the_label_of_its_release() -> None:
    objects = rendered(CHART, *OPERATOR, *sets("monitoring.labels.release=kube-prometheus"))
    picked = [
        each["kind"]
        for each in objects
        if each["metadata"].get("labels", {}).get("release") == "kube-prometheus"
    ]
    assert sorted(picked) == ["PodMonitor", "PodMonitor", "PrometheusRule"]


@needs_helm
def test_the_rule_object_is_that_of_alerts() -> None:
    ours = only(rendered(CHART, *OPERATOR), "PrometheusRule")
    theirs = yaml.safe_load((ROOT / "alerts/prometheusrule.yaml").read_text())
    assert ours["spec"] == theirs["spec"]


@needs_helm
def test_runbooks_may_be_elsewhere() -> None:
    words = sets("monitoring.rules.runbooks=https://wiki.example/runs/")
    found = rendered(CHART, *OPERATOR, *words)
    ours = only(found, "PrometheusRule")
    links = [
        rule["annotations"]["runbook_url"]
        for group in ours["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert links and all(each.startswith("https://wiki.example/runs/Mwatch") for each in links)
    boards = [json.dumps(each) for each in found if each["metadata"]["name"].endswith("-run")]
    assert boards and all("https://wiki.example/runs" in each for each in boards)


@needs_helm
@pytest.mark.parametrize("pages", ["monitoring.rules.pages", "controller.notify.externalUrl"])
def test_alerts_lead_to_the_dashboard_and_the_page_of_the_run(pages: str) -> None:
    words = sets("monitoring.rules.grafana=https://grafana.lab/", f"{pages}=https://mwatch.lab")
    ours = only(rendered(CHART, *OPERATOR, *words), "PrometheusRule")
    links = Links(grafana="https://grafana.lab", pages="https://mwatch.lab")
    files = {name: completed(text, links) for name, text in rule_files().items()}
    assert ours["spec"] == yaml.safe_load(prometheus_rule(files))["spec"]


@needs_helm
def test_a_plain_prometheus_gets_the_rules_as_files() -> None:
    made = of_kind(rendered(CHART, *sets("monitoring.rules.form=configmap")), "ConfigMap")
    data = made["mwatch-rules"]["data"]
    files = {path.name: path.read_text() for path in (ROOT / "alerts").glob("*.rules.yaml")}
    assert data == files


@needs_helm
def test_dashboards_are_config_maps_that_grafana_picks_up() -> None:
    found = of_kind(rendered(CHART), "ConfigMap")
    for path in sorted((ROOT / "dashboards").glob("*.json")):
        made = found[f"mwatch-dashboard-{path.stem}"]
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = made["data"].values()
        assert json.loads(text) == json.loads(path.read_text())
        assert len(text) < 1_000_000
    elsewhere = rendered(CHART, *sets("monitoring.dashboards.namespace=grafana"))
    named = of_kind(elsewhere, "ConfigMap")["mwatch-dashboard-run"]["metadata"]
    assert named["namespace"] == "grafana"


@needs_helm
def test_a_second_namespace_can_leave_out_what_the_first_has() -> None:
    words = sets("monitoring.dashboards.enabled=false", "monitoring.rules.form=none")
    kinds = [each["kind"] for each in rendered(CHART, *OPERATOR, *words)]
    assert "PrometheusRule" not in kinds and "ConfigMap" not in kinds
    assert kinds.count("PodMonitor") == 2


@needs_helm
def test_an_older_kubernetes_can_do_without_the_rules_of_admission() -> None:
    old = ["--kube-version", "1.29.4", *sets("admission.enabled=false")]
    assert "ValidatingAdmissionPolicy" not in {each["kind"] for each in rendered(CHART, *old)}


REFUSALS = [
    (sets("rbac.nodesCordon=true"), "needs rbac.nodesRead"),
    (
        sets("rbac.nodesCordon=true", "rbac.nodesRead=true", "admission.enabled=false"),
        "limit patches of nodes to the cordon",
    ),
    (sets("rbac.create=false"), "turn off both or neither"),
    (sets("controller.replicas=2"), "needs controller.evidence.claim"),
    (["--kube-version", "1.29.4"], "needs Kubernetes 1.30 or newer, and this is v1.29.4"),
    (sets("monitoring.kind=datadog"), "must be one of 'auto'"),
    (sets("monitoring.interval=60s"), "does not match pattern"),
    (sets("rbac.policies=[]"), "/rbac/policies"),
    (sets("controler.enabled=false"), "'controler' not allowed"),
]


@needs_helm
@pytest.mark.parametrize(("words", "sentence"), REFUSALS, ids=[each[1] for each in REFUSALS])
def test_what_cannot_work_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        rendered(CHART, *words)
    assert sentence in str(refused.value)
