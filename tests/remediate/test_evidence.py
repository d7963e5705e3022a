# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of a large gang: a restart waits for the first pods, and for the others but a moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mwatch.remediate import evidence
from mwatch.remediate.case import _interest
from mwatch.remediate.evidence import MANIFEST, collect
from mwatch.remediate.pod_client import PodAddress
from support.runs.job_monitor_runs import Fleet
from support.waiting import until

PODS = 200


class Sidecar(ThreadingHTTPServer):
    """Of all pods: each saves a bundle, and those of the listing are complete when it says so."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_complete = threading.Event()
        self.has_token = threading.Event()
        self.has_token.set()
        self.was_early = threading.Event()
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Sidecar

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.has_token.is_set():
            self._send(503, b'{"error": "not mounted"}')
            self.server.was_early.set()
            return
        self.server.asked.append(self.path)
        self._send(202, b'{"id": "b1", "state": "wanted"}')

    def do_GET(self) -> None:
        if self.path.endswith(".tgz"):
            self._send(200, b"a bundle")
            return
        state = "there" if self.server.is_complete.is_set() else "not there"
        self._send(200, json.dumps({"bundles": [{"id": "b1", "state": state}]}).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    with Sidecar() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def test_a_restart_does_not_wait_for_the_bundles_of_the_rest(
    sidecar: Sidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_REST_SECONDS", 0.1)
    port = sidecar.server_address[1]
    pods = [PodAddress(f"gpt-{each}", f"u{each}", "127.0.0.1", port) for each in range(PODS)]
    saved = collect(pods, "t", "why", tmp_path, seconds=120.0)
    assert len(sidecar.asked) == PODS, "all of them save"
    assert saved.files[-1] == "136 bundles being saved in their pods" and not saved.missing
    states = _states(tmp_path)
    assert states["gpt-0"] == "fetched" and states[f"gpt-{PODS - 1}"] == "being saved"
    assert len(list(tmp_path.glob("*.tgz"))) == 64
    sidecar.is_complete.set()
    until(lambda: _states(tmp_path)[f"gpt-{PODS - 1}"] == "in the pod", 120, ignoring=(ValueError,))


def test_a_new_pod_is_asked_until_its_token_is_mounted(sidecar: Sidecar, tmp_path: Path) -> None:
    sidecar.has_token.clear()
    sidecar.is_complete.set()
    pod = PodAddress("gpt-0", "u0", "127.0.0.1", sidecar.server_address[1], is_new=True)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(collect, [pod], "t", "why", tmp_path, seconds=120.0)
        assert sidecar.was_early.wait(120)
        sidecar.has_token.set()
        assert future.result(120).files == ("gpt-0.tgz",)


def test_an_old_pod_without_a_token_delays_no_restart(sidecar: Sidecar, tmp_path: Path) -> None:
    sidecar.has_token.clear()
    pod = PodAddress("gpt-0", "u0", "127.0.0.1", sidecar.server_address[1])
    saved = collect([pod], "t", "why", tmp_path, seconds=120.0)
    assert saved.missing == ("gpt-0: not mounted",)


def test_no_token_within_the_time_limit_is_a_reason(sidecar: Sidecar, tmp_path: Path) -> None:
    sidecar.has_token.clear()
    pod = PodAddress("gpt-0", "u0", "127.0.0.1", sidecar.server_address[1], is_new=True)
    saved = collect([pod], "t", "why", tmp_path, seconds=1.5)
    assert len(saved.missing) == 1 and saved.files == ()


def _states(folder: Path) -> dict[str, str]:
    pods = json.loads((folder / MANIFEST).read_bytes())["pods"]
    return {name: each["state"] for name, each in pods.items()}


def test_the_blamed_pod_comes_first_then_its_model_replica_then_a_sample() -> None:
    fleet = Fleet(8)
    fleet.run(10)
    job = fleet.watch.engine.job
    job.layout = job.layout.__class__(world_size=8, tensor=2, pipeline=1)
    pods = [PodAddress(each.name, each.uid, "::1", 1) for each in fleet.pods]
    ordered = [each.pod for each in sorted(pods, key=_interest(fleet.watch, "train-5"))]
    assert ordered[:2] == ["train-5", "train-4"]
    assert sorted(ordered) == sorted(each.pod for each in pods)
