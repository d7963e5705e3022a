# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Builds one panel with the Grafana SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.board import Kind, Panel, Query
from dashboards.states import PHASE_STATES, SEVERITY_STATES

SOURCE = model.DataSourceRef("prometheus", "${datasource}")
_COLUMN_STATES = {"Phase": PHASE_STATES, "Worst finding": SEVERITY_STATES}
_INSTANT: frozenset[Kind] = frozenset({"number", "totals", "table"})

_ONE_DECIMAL = frozenset({"percentunit", "s", "bytes", "Bps", "hertz", "short"})
"""Units that Grafana scales: two or three digits and the unit, such as 9.6 hours."""


def build(panel: Panel) -> Any:
    """Return the builder; builders of different kinds share only the methods used here."""
    made = _BUILDERS[panel.kind](panel)
    made.title(panel.title).description(_description(panel)).datasource(SOURCE)
    made.span(panel.width).height(panel.height).unit(panel.unit)
    for number, query in enumerate(panel.queries):
        made.with_target(_target(panel, query, chr(ord("A") + number)))
    if panel.unit in _ONE_DECIMAL and panel.kind != "table":
        made.decimals(1)
    made.links([_runbook(alert) for alert in panel.alerts])
    made.thresholds(_thresholds(panel))
    if panel.states:
        made.mappings([_mapping(panel.states)])
    if panel.low is not None:
        made.min(panel.low)
    if panel.high is not None:
        made.max(panel.high)
    if panel.when_empty is not None:
        made.no_value(panel.when_empty)
    return made


def _description(panel: Panel) -> str:
    if not panel.alerts:
        return panel.description
    pages = ", ".join(f"`mwatch runbook {alert}`" for alert in panel.alerts)
    return f"{panel.description}\n\nAlerts: {pages}"


def _runbook(alert: str) -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(f"Runbook: {alert}").type(model.DashboardLinkType.LINK)
    return link.url(f"${{runbooks}}/{alert}.md").target_blank(True)


def _target(panel: Panel, query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(SOURCE)
    if panel.kind == "table":
        return target.instant().format(PromQueryFormat.TABLE)
    target.legend_format(query.legend or "__auto").format(PromQueryFormat.TIME_SERIES)
    return target.instant() if panel.kind in _INSTANT else target.range()


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    found = [model.Threshold(step.value, step.color) for step in panel.steps]
    steps = found or [model.Threshold(None, "text" if panel.kind in _INSTANT else "green")]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _mapping(states: Any) -> model.ValueMap:
    return model.ValueMap(
        {
            str(number): model.ValueMappingResult(state.text, state.color, index=number)
            for number, state in states.items()
        }
    )


def _lines(panel: Panel) -> timeseries.Panel:
    made = timeseries.Panel().legend(_legend()).tooltip(_tooltip()).show_points(_NEVER)
    made.line_width(1).fill_opacity(0)
    if panel.steps:
        area = common.GraphThresholdsStyleConfig().mode(words.GraphThresholdsStyleMode.AREA)
        made.thresholds_style(area)
    if panel.is_logarithmic:
        scale = common.ScaleDistributionConfig().type(words.ScaleDistribution.LOG).log(2)
        made.scale_distribution(scale)
    for query in panel.queries:
        if query.unit is not None:
            made.override_by_name(query.legend, [model.DynamicConfigValue("unit", query.unit)])
    return made


def _bars(panel: Panel) -> timeseries.Panel:
    return _lines(panel).draw_style(words.GraphDrawStyle.BARS).fill_opacity(60)


def _stacked(panel: Panel) -> timeseries.Panel:
    stacking = common.StackingConfig().mode(words.StackingMode.NORMAL).group("A")
    return _lines(panel).stacking(stacking).fill_opacity(40)


def _band(panel: Panel) -> statetimeline.Panel:
    made = statetimeline.Panel().legend(_legend()).merge_values(True).row_height(0.8)
    return made.show_value(words.VisibilityMode.AUTO).color_scheme(_by_threshold())


def _heat(panel: Panel) -> statushistory.Panel:
    made = statushistory.Panel().legend(_legend().show_legend(False)).row_height(0.95)
    return made.show_value(_NEVER).color_scheme(_by_threshold()).col_width(1)


def _number(panel: Panel) -> stat.Panel:
    made = stat.Panel().graph_mode(words.BigValueGraphMode.NONE).reduce_options(_last())
    is_colored = panel.steps or panel.states
    mode = words.BigValueColorMode.VALUE if is_colored else words.BigValueColorMode.NONE
    return made.color_mode(mode)


def _totals(panel: Panel) -> bargauge.Panel:
    made = bargauge.Panel().reduce_options(_last()).display_mode(words.BarGaugeDisplayMode.BASIC)
    return made.orientation(words.VizOrientation.HORIZONTAL)


def _table(panel: Panel) -> table.Panel:
    """All queries as columns, one row per set of labels."""
    renamed = {f"Value #{chr(65 + n)}": query.legend for n, query in enumerate(panel.queries)}
    if len(panel.queries) == 1:
        renamed["Value"] = panel.queries[0].legend
    made = table.Panel().with_transformation(model.DataTransformerConfig("merge", options={}))
    organize: dict[str, Any] = {"excludeByName": {"Time": True}, "renameByName": renamed}
    if panel.columns:
        organize["excludeByName"]["Value"] = True
        organize["indexByName"] = {label: at for at, label in enumerate(panel.columns)}
        organize["renameByName"] = dict(panel.columns)
        return made.with_transformation(model.DataTransformerConfig("organize", options=organize))
    made.with_transformation(model.DataTransformerConfig("organize", options=organize))
    for query in panel.queries:
        values = [model.DynamicConfigValue("unit", query.unit or "none")]
        if query.unit in _ONE_DECIMAL:
            values.append(model.DynamicConfigValue("decimals", 1))
        if states := _COLUMN_STATES.get(query.legend):
            values.append(model.DynamicConfigValue("mappings", [_mapping(states)]))
            cell = {"type": "color-text"}
            values.append(model.DynamicConfigValue("custom.cellOptions", cell))
        made.override_by_name(query.legend, values)
    return made


_NEVER = words.VisibilityMode.NEVER


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(words.LegendDisplayMode.LIST)
    return legend.placement(words.LegendPlacement.BOTTOM).show_legend(True)


def _tooltip() -> common.VizTooltipOptions:
    return common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI)


def _by_threshold() -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


_BUILDERS: dict[Kind, Callable[[Panel], Any]] = {
    "lines": _lines,
    "bars": _bars,
    "stacked": _stacked,
    "band": _band,
    "heat": _heat,
    "number": _number,
    "totals": _totals,
    "table": _table,
}
