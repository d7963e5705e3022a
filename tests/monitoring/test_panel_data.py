# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every query of every dashboard, asked of a real Prometheus that has watched a real run.

The run was a real training on this machine that stalled, was restarted and went on. What it cannot
show is in the table of `not_live`, and comes from the fake pod. Controllers are of no run: their
panels show that of the fake fleet, whichever run is picked.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from monitoring import fake_fleet, fake_pod
from monitoring.live_training import RUN
from monitoring.not_live import ANYWHERE, why_not_live
from monitoring.panel_queries import TIMES, PanelQuery, boards, queries
from monitoring.watched_run import Watched

EVERY = queries()
LIVE = [each for each in EVERY if why_not_live(each) is None]
NOT_LIVE = [each for each in EVERY if why_not_live(each) is not None]


@pytest.mark.parametrize("query", LIVE, ids=lambda query: query.name)
def test_a_real_run_gives_data_to(watched: Watched, query: PanelQuery) -> None:
    assert watched.ask(query, RUN)


@pytest.mark.parametrize("query", NOT_LIVE, ids=lambda query: query.name)
def test_the_fakes_give_data_where_a_real_run_cannot(watched: Watched, query: PanelQuery) -> None:
    assert watched.ask(query, fake_pod.RUN)
    if why_not_live(query) in ANYWHERE:
        assert not watched.ask(query, RUN), f"no longer true: {why_not_live(query)}"


@pytest.mark.parametrize("board", boards())
def test_the_variables_find_all_runs_with_and_without_a_namespace(
    watched: Watched, board: str
) -> None:
    variables = {each["name"]: each for each in boards()[board]["templating"]["list"]}
    assert set(_values(watched, variables["run"]["query"])) == {RUN, fake_pod.RUN, fake_fleet.RUN}
    places = [fake_fleet.NAMESPACE, fake_pod.NAMESPACE]
    assert _values(watched, variables["namespace"]["query"]) == places
    if pods := variables.get("pod"):
        assert _values(watched, pods["query"], run=fake_pod.RUN) == [fake_pod.POD]
        assert _values(watched, pods["query"], run=RUN) == []


def _values(watched: Watched, query: str, run: str = ".*") -> list[str]:
    """As Grafana understands `label_values(series, label)`."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert found
    series = PanelQuery("", "", "", found[1], True).filled(namespace=".*", run=run)
    page = f"/api/v1/label/{found[2]}/values"
    values: list[str] = watched.prometheus.get(page, **{"match[]": series})["data"]
    return values


def test_a_run_without_a_namespace_is_seen_when_all_are_picked_and_not_when_one_is(
    watched: Watched,
) -> None:
    (query,) = [each for each in EVERY if (each.board, each.panel) == ("run", "Iteration")]
    for namespace, expected in ((".*", 1), ("team-a", 0)):
        expr = query.filled(run=RUN, namespace=namespace, **TIMES)
        assert len(watched.values(expr, is_instant=True)) == expected


def utilisation(watched: Watched, change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Labels by UUID."""
    (query,) = [each for each in EVERY if each.panel == "Utilisation"]
    changed = query._replace(expr=re.sub(*change, query.expr) if change[0] else query.expr)
    found = watched.ask(changed, fake_pod.RUN)
    return {each["metric"]["UUID"]: each["metric"] for each in found}


def test_dcgm_exporter_fills_gaps_and_takes_the_rank_from_mwatch(watched: Watched) -> None:
    found = utilisation(watched)
    assert found.keys() == {"GPU-0", "GPU-1", "GPU-2", "GPU-9"}
    assert (found["GPU-2"]["rank"], found["GPU-2"]["node"]) == ("0002", "node-old")
    assert "rank" not in found["GPU-9"]
    assert found["GPU-9"]["node"] == "node-new"


def test_gpus_are_there_without_dcgm_exporter(watched: Watched) -> None:
    assert utilisation(watched, ("DCGM_", "NOT_DCGM_")).keys() == {"GPU-0", "GPU-1"}


def test_gpus_of_the_pods_are_there_where_mwatch_sees_none(watched: Watched) -> None:
    assert utilisation(watched, ("mwatch_gpu_", "not_mwatch_gpu_")).keys() == {"GPU-9"}
