# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Adds what all alerts share, and generates the `PrometheusRule` from the rule files.

    python -m alerts.generate [--runbooks URL] [--grafana URL] [--pages URL]

The runbook link follows from the name of the alert and is written as its first annotation. An alert
about a run also gets its open incidents (cause, culprit, action), the command to type and, if their
addresses are given, links to the dashboard and to the page of the run. The incidents are read while
the text is rendered, so an alert without them fires all the same. The generator works on lines, not
on YAML, to keep comments; it relies on the layout of these files (two spaces per level, one
`annotations:` per alert).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RUNBOOKS = "https://github.com/mwatch-dev/mwatch/blob/main/runbooks"
"""Base URL of the runbooks; the only definition for the alerts."""
OBJECT = "prometheusrule.yaml"

_ALERT = re.compile(r" {6}- alert: (?P<name>\w+)")
_ANNOTATIONS = " " * 8 + "annotations:"
_INDENT = " " * 10
_SHARED = re.compile(r" {10}(?:runbook_url|incident|command|dashboard_url|page_url):")
_DEEPER = " " * 11
_OF_RUN = "$labels.run "
_INCIDENT = """\
incident: >-
  {{ with printf "topk(3, mwatch:run_incident:max{cluster=%q,namespace=%q,run=%q})"
  $labels.cluster $labels.namespace $labels.run | query | sortByLabel "severity" -}}
  {{ range $number, $each := . }}{{ if $number }} {{ end -}}
  Cause: {{ reReplaceAll "_" " " .Labels.cause }} ({{ .Labels.finding }}).
  {{- if or .Labels.rank .Labels.culprit_pod .Labels.culprit_node .Labels.UUID }}
  Culprit: rank {{ or .Labels.rank "unknown" }}, pod {{ or .Labels.culprit_pod "unknown" }},
  node {{ or .Labels.culprit_node "unknown" }}, GPU {{ or .Labels.UUID "unknown" }}.
  {{- else }} No culprit is known.{{ end }} Action: {{ .Labels.action }}
  {{- if eq .Labels.stage "acted" }} (carried out)
  {{- else if ne .Labels.action "none" }} (due; in mode observe only proposed){{ end }}.
  {{- end }}{{ else -}}
  mwatch reports no open incident of this run. The command shows its state.{{ end }}
command: mwatch diagnose {{ $labels.run }}{{ with $labels.namespace }} -n {{ . }}{{ end }}"""
_DASHBOARD = (
    "/d/mwatch-run?var-cluster={{ $labels.cluster }}"
    "&var-namespace={{ $labels.namespace }}&var-run={{ $labels.run }}"
)
_PAGE = "/jobs/{{ $labels.namespace }}/{{ $labels.run }}"
_HEADER = """\
# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0

# Generated from *.rules.yaml by `python -m alerts.generate`; a test fails if it is out of date.
# kube-prometheus-stack reads only objects with the label `release: NAME OF THE RELEASE`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: mwatch
  labels:
    app.kubernetes.io/name: mwatch
spec:
  groups:
"""


class Links(NamedTuple):
    runbooks: str = RUNBOOKS
    grafana: str = ""
    """Address of Grafana; empty: no link."""
    pages: str = ""
    """Address of the controller's pages; empty: no link."""


def rule_files(folder: Path = HERE) -> dict[str, str]:
    """Text of the rule files by name, in order."""
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.rules.yaml"))}


def completed(text: str, links: Links | None = None) -> str:
    """Return the rules with the shared annotations in each alert."""
    head, *alerts = re.split(r"^(?= {6}- alert: )", text, flags=re.MULTILINE)
    return head + "".join(_completed(each, links or Links()) for each in alerts)


def _completed(alert: str, links: Links) -> str:
    found = _ALERT.match(alert)
    assert found is not None
    lines: list[str] = []
    is_shared = False
    for line in alert.splitlines():
        is_shared = bool(_SHARED.match(line)) or (is_shared and line.startswith(_DEEPER))
        if is_shared:
            continue
        lines.append(line)
        if line == _ANNOTATIONS:
            shared = _shared(found["name"], links, is_of_run=_OF_RUN in alert)
            lines += [f"{_INDENT}{each}" for each in shared]
    return "\n".join(lines) + "\n"


def _shared(name: str, links: Links, *, is_of_run: bool) -> Iterator[str]:
    yield f"runbook_url: {links.runbooks.rstrip('/')}/{name}.md"
    if is_of_run:
        yield from _INCIDENT.splitlines()
        if links.grafana:
            yield f"dashboard_url: {links.grafana.rstrip('/')}{_DASHBOARD}"
        if links.pages:
            yield f"page_url: {links.pages.rstrip('/')}{_PAGE}"


def prometheus_rule(files: Mapping[str, str]) -> str:
    """Join the groups of all files into one object for the Prometheus operator."""
    groups = [text.partition("\ngroups:\n")[2] for text in files.values()]
    indented = (f"  {line}".rstrip() for text in groups for line in text.splitlines())
    return _HEADER + "\n".join(indented) + "\n"


def generate(folder: Path, links: Links | None = None) -> None:
    made = {name: completed(text, links) for name, text in rule_files(folder).items()}
    for name, text in (made | {OBJECT: prometheus_rule(made)}).items():
        (folder / name).write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Complete the alerts; write the PrometheusRule.")
    parser.add_argument("--runbooks", metavar="URL", default=RUNBOOKS, help="base URL of runbooks")
    parser.add_argument("--grafana", metavar="URL", default="", help="address of Grafana")
    parser.add_argument("--pages", metavar="URL", default="", help="address of the controller")
    given = parser.parse_args()
    generate(HERE, Links(given.runbooks, given.grafana, given.pages))


if __name__ == "__main__":
    main()
