# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to a sidecar that is slow, lies, or sends too much: bounded, and the token stays put."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mwatch.remediate.pod_client import NoAnswer, PodAddress, ask_all, download, get

Answer = Callable[[BaseHTTPRequestHandler], None]
LONG = 60.0
"""Seconds for a pod that does answer, on a machine that may be busy."""


class Pod(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Answer = lambda request: None
        self.tokens: list[str | None] = []
        self.ends = threading.Event()

    @property
    def address(self) -> PodAddress:
        return PodAddress("gpt-0", "uid", "127.0.0.1", self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Pod

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization"))
        self.server.answer(self)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pod() -> Iterator[Pod]:
    with Pod() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.ends.set()
        server.shutdown()
        thread.join(60)


def sends(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def test_an_answer_is_read_with_its_status(pod: Pod) -> None:
    pod.answer = sends(b'{"id": "x"}', 202)
    replies = ask_all(
        [pod.address], "/v1/evidence", "t", body={"a": 1}, each_seconds=30.0, seconds=60.0
    )
    assert replies == {"gpt-0": (202, {"id": "x"})}
    assert pod.tokens == ["Bearer t"]
    pod.answer = sends(b"[", 500)
    reply = get(pod.address, "/", "t", LONG)
    assert reply.status == 500 and reply.error == "status 500"


def test_a_redirect_is_not_followed(pod: Pod) -> None:
    pod.answer = sends(b"", 302, Location="http://127.0.0.1:1/")
    assert get(pod.address, "/", "t", LONG).status == 302
    assert len(pod.tokens) == 1


def test_a_pod_that_does_not_listen_and_an_answer_that_does_not_end_are_reported(pod: Pod) -> None:
    def drips(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000")
        request.end_headers()
        with suppress(BrokenPipeError):
            while not pod.ends.wait(0.05):
                request.wfile.write(b" ")

    pod.answer = drips
    began = time.monotonic()
    with pytest.raises(NoAnswer, match="does not end"):
        get(pod.address, "/", "t", 3.0)
    assert time.monotonic() - began < LONG
    with pytest.raises(NoAnswer, match="Connection refused"):
        get(pod.address._replace(port=1), "/", "t", LONG)

    def hangs(request: BaseHTTPRequestHandler) -> None:
        pod.ends.wait(LONG)

    pod.answer = hangs
    with pytest.raises(NoAnswer, match=r"no answer within 0\.2 s"):
        get(pod.address, "/", "t", 0.2)


def test_a_bundle_is_there_whole_or_not_at_all(pod: Pod, tmp_path: Path) -> None:
    target = tmp_path / "gpt-0.tgz"
    pod.answer = sends(b"x" * 1000)
    assert download(pod.address, "/b.tgz", "t", target, seconds=LONG, max_bytes=1000) is None
    assert target.read_bytes() == b"x" * 1000
    target.unlink()
    with pytest.raises(NoAnswer, match="larger than 999"):
        download(pod.address, "/b.tgz", "t", target, seconds=LONG, max_bytes=999)
    pod.answer = sends(b"x" * 10, Content_Length="20")
    with pytest.raises(NoAnswer):
        download(pod.address, "/b.tgz", "t", target, seconds=LONG, max_bytes=999)
    pod.answer = sends(b'{"error": "not yet"}', 404)
    reply = download(pod.address, "/b.tgz", "t", target, seconds=LONG, max_bytes=999)
    assert reply is not None and (reply.status, reply.error) == (404, "not yet")
    assert list(tmp_path.iterdir()) == []


def test_all_pods_are_asked_and_one_that_does_not_answer_delays_no_other(pod: Pod) -> None:
    pod.answer = sends(b'{"id": "x"}', 202)
    many = [pod.address._replace(pod=f"gpt-{number}") for number in range(200)]
    gone = pod.address._replace(pod="gone", port=1)
    replies = ask_all([gone, *many], "/v1/evidence", "t", body={}, each_seconds=60.0, seconds=120.0)
    assert isinstance(replies.pop("gone"), NoAnswer)
    assert replies == {each.pod: (202, {"id": "x"}) for each in many}


def test_requests_without_an_answer_end_with_the_time_for_all(pod: Pod) -> None:
    def never(request: BaseHTTPRequestHandler) -> None:
        pod.ends.wait(60)

    pod.answer = never
    replies = ask_all([pod.address], "/", "t", each_seconds=60.0, seconds=0.2)
    assert str(replies["gpt-0"]) == "no answer within 0 s"


def test_nobody_is_asked_any_more_when_we_may_not(pod: Pod) -> None:
    replies = ask_all(
        [pod.address], "/", "t", each_seconds=9.0, seconds=9.0, may_go_on=lambda: False
    )
    assert isinstance(replies["gpt-0"], NoAnswer) and pod.tokens == []
