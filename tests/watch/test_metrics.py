# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/metrics` and `/healthz` of a watched run, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from mwatch.model.decision import Action
from mwatch.model.finding import Cause
from mwatch.model.observation import AttemptStart
from mwatch.watch.collector import VolumeCollector
from mwatch.watch.metrics import RunMetrics, serve
from support.builders.events import grammar
from support.builders.job import entries
from support.builders.run import Told, gone_bad


def live_of(told: Told, volume: Path) -> VolumeCollector:
    return VolumeCollector(volume, "local", grammar(), entries(), told.clock)


def metrics_of(told: Told, volume: Path) -> RunMetrics:
    return RunMetrics(told.engine, live_of(told, volume))


def page(where: str) -> str:
    with urlopen(where, timeout=10) as answer:
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
        metrics.looked(told.waits(1))
        assert 'mwatch_iteration{run="run"} 9.0' in page(metrics.where)
        assert page(metrics.where.replace("/metrics", "/healthz")) == "ok\n"


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
        metrics.looked(told.waits(1))


def test_ports_that_cannot_be_had_are_said_and_no_reason_not_to_train(tmp_path: Path) -> None:
    told = Told()
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 65535))
        busy.listen()
        with serve(65535, metrics_of(told, tmp_path)) as metrics:
            assert metrics.where is None
            assert "port 65535 cannot be had" in (metrics.problem or "")


def test_the_server_ends_with_the_run(tmp_path: Path) -> None:
    told = Told()
    with taken_port() as port, serve(port, metrics_of(told, tmp_path)):
        assert any(each.name == "mwatch-http" for each in threading.enumerate())
    assert not any(each.name == "mwatch-http" for each in threading.enumerate())


def test_what_is_over_is_counted_with_what_was_done(tmp_path: Path) -> None:
    told = gone_bad()
    metrics = metrics_of(told, tmp_path)
    told.enacts(told.waits(1).decision)
    metrics.looked(told.waits(1))
    (before,) = metrics.snapshots()
    metrics.looked(told.sees(AttemptStart(2, 6, None)))
    (after,) = metrics.snapshots()
    assert before.incidents == {}, "a scrape is not changed under its hands"
    assert after.incidents == {(Cause.NAN, Action.RESTART): 1}
