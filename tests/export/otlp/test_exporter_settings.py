# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""OTLP by the standard variables: where to, with which headers, about whom; no secret goes out."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

import pytest

from mwatch.export.otlp.exporter import Otlp, address
from mwatch.model.snapshot.snapshot import Numbers
from support.builders.snapshot import busy_snapshot
from support.fakes.otlp_receiver import receiver, sending
from support.free_ports import free_port
from support.waiting import until

SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345678"


def test_headers_resource_and_compression_come_from_the_standard_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=alpha,authorization=Bearer%20abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"team=alpha,k8s.pod.name=other,key={SECRET}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "watcher")
    with receiver() as server, sending(server.endpoint, attributes={"k8s.pod.name": "worker-3"}):
        got = server.wait(1)[0]
    assert got.headers["x-team"] == "alpha"
    assert got.headers["authorization"] == "Bearer abc"
    assert got.headers["content-encoding"] == "gzip"
    assert got.resource["team"] == "alpha"
    assert got.resource["k8s.pod.name"] == "worker-3"
    assert got.resource["service.name"] == "watcher"
    assert SECRET not in str(got.resource)


def test_who_is_in_the_address_is_sent_as_a_header() -> None:
    with receiver() as server:
        host = server.endpoint.removeprefix("http://")
        with sending(f"http://me:p%40ss@{host}"):
            got = server.wait(1)[0]
    assert got.headers["authorization"] == "Basic " + b64encode(b"me:p@ss").decode()


def test_what_cannot_be_read_of_the_variables_is_left_out_in_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", f"team=alpha,{SECRET}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-team=alpha,{SECRET}")
    with receiver() as server, sending(server.endpoint):
        got = server.wait(1)[0]
    assert (got.resource["team"], got.headers["x-team"]) == ("alpha", "alpha")
    assert SECRET not in str(got) + "".join(capfd.readouterr())


def test_a_certificate_that_is_not_there_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem")
    with sending("https://127.0.0.1:1") as otlp:
        until(lambda: otlp.problem)
        assert "No such file" in (otlp.problem or "")


def test_a_secret_in_a_name_or_an_address_is_taken_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = replace(busy_snapshot(), run="ours-7", numbers=Numbers(losses={f"x {SECRET}": 1.0}))
    monkeypatch.setenv("MWATCH_SCRUB", r"ours-\d")
    with receiver() as server, sending(server.endpoint, odd):
        got = server.wait(1)[0]
    assert SECRET not in str(got)
    assert "ours-7" not in str(got)
    address = f"http://user:{SECRET}@127.0.0.1:{free_port()}/{SECRET}"
    with sending(address, limit_seconds=0.1) as otlp:
        until(lambda: otlp.problem)
        assert SECRET not in (otlp.problem or "")
    with pytest.raises(ValueError, match="not an http") as refused:
        Otlp(f"grpc://{SECRET}", list)
    assert SECRET not in str(refused.value)
    assert SECRET not in "".join(capfd.readouterr())


def test_where_to_send_is_what_the_standard_variables_say() -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}
    own = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://other/in"}
    assert address("http://collector:4318/", base) == "http://collector:4318/v1/metrics"
    assert address("http://collector:4318/", base | own) == "http://other/in"
    assert address("http://other/in", own) == "http://other/in"
    assert address("http://a/api/v1/otlp", base | own) == "http://a/api/v1/otlp/v1/metrics"
    assert address("http://a/v1/metrics", {}) == "http://a/v1/metrics"


def test_the_port_of_grpc_is_pointed_out() -> None:
    with sending("http://127.0.0.1:4317") as otlp:
        until(lambda: otlp.problem)
        assert "4318" in (otlp.problem or "")
