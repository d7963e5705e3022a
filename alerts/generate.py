# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Adds the runbook links to the alerts, and generates the `PrometheusRule` from the rule files.

    python -m alerts.generate [--runbooks URL]

The runbook link follows from the name of the alert and is written as its first annotation. The
generator works on lines, not on YAML, to keep comments; it relies on the layout of these files (two
spaces per level, one `annotations:` per alert).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNBOOKS = "https://github.com/mwatch-dev/mwatch/blob/main/runbooks"
"""Base URL of the runbooks; the only definition for the alerts."""
OBJECT = "prometheusrule.yaml"

_ALERT = re.compile(r" {6}- alert: (?P<name>\w+)")
_ANNOTATIONS = " " * 8 + "annotations:"
_RUNBOOK = " " * 10 + "runbook_url:"
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


def rule_files(folder: Path = HERE) -> dict[str, str]:
    """Text of the rule files by name, in order."""
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.rules.yaml"))}


def with_runbooks(text: str, base: str = RUNBOOKS) -> str:
    """Return the rules with the runbook link in each alert."""
    lines: list[str] = []
    name = None
    for line in text.splitlines():
        if found := _ALERT.match(line):
            name = found["name"]
        if line.startswith(_RUNBOOK):
            continue
        lines.append(line)
        if name is not None and line == _ANNOTATIONS:
            lines.append(f"{_RUNBOOK} {base.rstrip('/')}/{name}.md")
            name = None
    return "\n".join(lines) + "\n"


def prometheus_rule(files: Mapping[str, str]) -> str:
    """Join the groups of all files into one object for the Prometheus operator."""
    groups = [text.partition("\ngroups:\n")[2] for text in files.values()]
    indented = (f"  {line}".rstrip() for text in groups for line in text.splitlines())
    return _HEADER + "\n".join(indented) + "\n"


def generate(folder: Path, base: str = RUNBOOKS) -> None:
    made = {name: with_runbooks(text, base) for name, text in rule_files(folder).items()}
    for name, text in (made | {OBJECT: prometheus_rule(made)}).items():
        (folder / name).write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate runbook links and PrometheusRule.")
    parser.add_argument("--runbooks", metavar="URL", default=RUNBOOKS, help="base URL of runbooks")
    generate(HERE, parser.parse_args().runbooks)


if __name__ == "__main__":
    main()
