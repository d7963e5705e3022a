# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Other ways out of the real `mwatch run`: notes for TensorBoard, and OTLP. Starts processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from support.runs import live_runs


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Takes whatever is sent to it."""
    got: list[bytes] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Taker)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_crash_is_noted_for_tensorboard(tmp_path: Path) -> None:
    notes = tmp_path / "tensorboard"
    notes.mkdir()
    trainer = live_runs.trainer("--train-iters", "10", "--then", "raise", "--at", "5")
    line = live_runs.command(tmp_path, "--tensorboard-notes", str(notes), then=trainer)
    done = live_runs.run(line, tmp_path)
    assert done.code == 1
    (record,) = done.records
    written = b"".join(each.read_bytes() for each in notes.rglob("*tfevents*"))
    assert record["cause"].encode() in written


def test_a_collector_gets_the_last_numbers(tmp_path: Path) -> None:
    trainer = live_runs.trainer("--train-iters", "10")
    with collector() as (endpoint, got):
        line = live_runs.command(tmp_path, "--otlp-endpoint", endpoint, then=trainer)
        assert live_runs.run(line, tmp_path).code == 0
    told = b"".join(got)
    assert b"megatron.training" in told
    assert b"mwatch" in told


def test_an_endpoint_that_is_none_is_refused_before_the_command_starts(tmp_path: Path) -> None:
    trainer = live_runs.trainer("--train-iters", "10")
    line = live_runs.command(tmp_path, "--otlp-endpoint", "nowhere", then=trainer)
    done = live_runs.run(line, tmp_path)
    assert done.code == 2
    assert b"--otlp-endpoint" in done.err
    assert b"iteration" not in done.out
