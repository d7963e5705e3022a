# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turns a board into Grafana's JSON.

The Grafana SDK places the panels. Fields that it does not support (title and text of a Prometheus
annotation) are added to its JSON.
"""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from dashboards.board import Annotation, Board
from dashboards.grafana_panels import SOURCE, build
from dashboards.promql import PLACE

RUNBOOKS = "https://github.com/mwatch-dev/mwatch/blob/main/runbooks"
"""Base URL of the runbooks, the same as in the alerts. A hidden dashboard variable overrides it."""
_SEEN = "mwatch_last_look_timestamp_seconds"
_ALL = model.VariableOption(text="All", value="$__all")


def text(board: Board) -> str:
    """Render the JSON file; the output is deterministic."""
    made = _board(board).build()
    plain: dict[str, Any] = json.loads(json.dumps(made, cls=JSONEncoder))
    for found, annotation in zip(plain["annotations"]["list"], board.annotations, strict=True):
        found |= {"titleFormat": annotation.title, "textFormat": annotation.text, "step": "60s"}
    within = (each for panel in plain["panels"] for each in (panel, *panel.get("panels", ())))
    for number, panel in enumerate(within, 1):
        panel["id"] = number
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _board(board: Board) -> dashboard.Dashboard:
    made = dashboard.Dashboard(board.title).uid(board.uid).description(board.description)
    made.tags(["mwatch", "megatron"]).time("now-3h", "now").refresh("30s").timezone("browser")
    made.tooltip(model.DashboardCursorSync.CROSSHAIR).editable()
    made.variables(_variables(board)).annotations([_annotation(each) for each in board.annotations])
    made.link(
        dashboard.DashboardLink("mwatch").type(model.DashboardLinkType.DASHBOARDS).tags(["mwatch"])
        .as_dropdown(True).include_vars(True).keep_time(True)
    )  # fmt: skip
    for row in board.rows:
        heading = dashboard.Row(row.title).collapsed(row.is_collapsed)
        if row.is_collapsed:
            for panel in row.panels:
                heading.with_panel(build(panel))
        made.with_row(heading)
        for panel in () if row.is_collapsed else row.panels:
            made.with_panel(build(panel))
    return made


def _variables(board: Board) -> list[Any]:
    clusters = f'{_SEEN}{{cluster=~"$cluster"}}'
    here = f"{_SEEN}{{{PLACE}}}"
    run = _query("run", "Job (run)", f"label_values({here}, run)")
    if board.many_runs:
        run = _all(run)
    made: list[Any] = [
        dashboard.DatasourceVariable("datasource").type("prometheus").label("Data source"),
        _all(_query("cluster", "Cluster", f"label_values({_SEEN}, cluster)")),
        _all(_query("namespace", "Namespace", f"label_values({clusters}, namespace)")),
        run,
    ]
    if board.has_pods:
        matches = "=~" if board.many_runs else "="
        pods = f'{_SEEN}{{{PLACE}, run{matches}"$run"}}'
        made.append(_all(_query("pod", "Pod", f"label_values({pods}, pod)")))
    made.append(_runbooks())
    return made


def _query(name: str, label: str, query: str) -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    return made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        model.VariableSort.ALPHABETICAL_ASC
    )


def _all(variable: dashboard.QueryVariable) -> dashboard.QueryVariable:
    """Allow several values; "All" is `.*`, which also matches a missing label."""
    return variable.multi(True).include_all(True).all_value(".*").current(_ALL)


def _runbooks() -> dashboard.TextBoxVariable:
    made = dashboard.TextBoxVariable("runbooks").label("Runbooks").default_value(RUNBOOKS)
    return made.hide(model.VariableHide.HIDE_VARIABLE).current(
        model.VariableOption(text=RUNBOOKS, value=RUNBOOKS)
    )


def _annotation(each: Annotation) -> dashboard.AnnotationQuery:
    made = dashboard.AnnotationQuery().name(each.name).datasource(SOURCE).expr(each.expr)
    return made.enable(True).icon_color(each.color)
