# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/metrics` and `/healthz` of a watched run, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from mwatch.export.metrics.catalog import BADPUT, INCIDENT_INFO
from mwatch.export.metrics.measure import measure
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.goodput import Spent
from mwatch.model.observation import AttemptStart
from mwatch.state.goodput.ledger import time_spent
from mwatch.watch.collector import VolumeCollector
from mwatch.watch.metrics import RunMetrics, serve
from support.builders.events import grammar
from support.builders.fold import READY, WORLD
from support.builders.job import entries
from support.builders.run import Told, gone_bad, good
from support.waiting import until


def live_of(told: Told, volume: Path) -> VolumeCollector:
    return VolumeCollector(volume, "local", grammar(), entries(), told.clock)


def metrics_of(told: Told, volume: Path) -> RunMetrics:
    return RunMetrics(told.engine, live_of(told, volume))


def page(where: str) -> str:
    with urlopen(where, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield busy.getsockname()[1]


def test_a_scrape_reads_the_newest_look(tmp_path: Path) -> None:
    told = gone_bad()
    with taken_port() as port, serve(port, metrics_of(told, tmp_path)) as metrics:
        assert metrics.where is not None
        assert 'mwatch_iteration{run="run"}' not in page(metrics.where), "nobody has looked yet"
        metrics.update(told.waits(1))
        assert 'mwatch_iteration{run="run"} 9.0' in page(metrics.where)
        assert page(metrics.where.replace("/metrics", "/healthz")) == "ok\n"


def test_an_open_incident_is_one_series_that_ends_with_it(tmp_path: Path) -> None:
    told = gone_bad()
    metrics = metrics_of(told, tmp_path)

    def incidents() -> list[str]:
        (snapshot,) = metrics.snapshots()
        found = [each for each in measure(snapshot) if each.metric is INCIDENT_INFO]
        assert all(each.value == 1 for each in found)
        return [each.labels[0] for each in found]

    metrics.update(told.waits(1))
    assert incidents() == ["nan"]
    metrics.update(told.sees(AttemptStart(2, 6, None)))
    assert incidents() == []


def test_a_port_that_is_taken_gives_the_next(tmp_path: Path) -> None:
    told = Told()
    with taken_port() as port, serve(port, metrics_of(told, tmp_path)) as metrics:
        assert metrics.problem is None
        assert metrics.where is not None
        assert f":{port}/" not in metrics.where


def test_without_a_port_nothing_is_served(tmp_path: Path) -> None:
    told = Told()
    with serve(None, metrics_of(told, tmp_path)) as metrics:
        assert metrics.where is None
        assert metrics.problem is None
        metrics.update(told.waits(1))


def has_last_port(busy: socket.socket) -> bool:
    """There is only one, and another run of these tests may just hold it: OSError."""
    busy.bind(("127.0.0.1", 65535))
    return True


def test_ports_that_cannot_be_had_are_reported_and_no_reason_not_to_train(tmp_path: Path) -> None:
    told = Told()
    with socket.socket() as busy:
        until(partial(has_last_port, busy), ignoring=(OSError,))
        busy.listen()
        with serve(65535, metrics_of(told, tmp_path)) as metrics:
            assert metrics.where is None
            assert "cannot listen on port 65535" in (metrics.problem or "")


def test_the_server_ends_with_the_run(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    with taken_port() as port, serve(port, metrics_of(Told(), tmp_path)):
        servers = [each for each in threading.enumerate() if each.name == "mwatch-http"]
        (own,) = {*servers} - before
    until(lambda: not own.is_alive())


def test_what_is_over_is_counted_with_what_was_done(tmp_path: Path) -> None:
    told = gone_bad()
    metrics = metrics_of(told, tmp_path)
    told.enacts(told.waits(1).decision)
    metrics.update(told.waits(1))
    (before,) = metrics.snapshots()
    metrics.update(told.sees(AttemptStart(2, 6, None)))
    (after,) = metrics.snapshots()
    assert before.incidents == {}, "a scrape is not changed under its hands"
    assert after.incidents == {(Cause.NAN, Action.RESTART): 1}


def scraped(metrics: RunMetrics) -> dict[str, float]:
    (snapshot,) = metrics.snapshots()
    return {
        value.labels[0]: value.value for value in measure(snapshot) if value.metric is BADPUT
    } | {"goodput": snapshot.goodput or 0.0}


def test_goodput_falls_and_lost_time_rises_while_a_hang_lasts(tmp_path: Path) -> None:
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD, READY, *good(*range(1, 121)))
    metrics, seen = metrics_of(told, tmp_path), []
    for _ in range(6):
        metrics.update(told.waits(15))
        seen.append(scraped(metrics))
    assert [each["goodput"] for each in seen] == sorted(
        {each["goodput"] for each in seen}, reverse=True
    )
    lost = [sum(each.values()) - each["goodput"] for each in seen]
    assert lost[-1] - lost[1] == pytest.approx(60.0)
    assert seen[-1]["hang_undetected"] + seen[-1]["detecting"] == pytest.approx(90.0, abs=1.0)


def test_no_counter_of_lost_time_falls_when_a_silence_turns_out_to_be_an_evaluation(
    tmp_path: Path,
) -> None:
    told = Told()
    told.sees(AttemptStart(1, None, None))
    told.says(WORLD, READY, *good(*range(1, 121)))
    metrics = metrics_of(told, tmp_path)
    metrics.update(told.waits(30))
    before = scraped(metrics)
    assert before["hang_undetected"] > 0
    result = " validation loss at iteration 120 | lm loss value: 2.1E+00 | lm loss PPL: 8.2E+00 | "
    metrics.update(told.says(result, *good(121, 122)))
    after = scraped(metrics)
    spent = time_spent(told.engine.job, told.clock.now()).seconds
    assert spent[Spent.HANG_UNDETECTED] == 0
    assert after["evaluating"] == pytest.approx(spent[Spent.EVALUATING]) != 0
    assert after["hang_undetected"] == before["hang_undetected"]
