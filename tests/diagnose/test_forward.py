# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch ui JOB`: live pages of a controller or sidecar, through an API server, on loopback.

The API server is a fake that passes requests on; the real one is asked in `tests/cluster`.
"""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urljoin

import pytest

from kube.fake_api import FakeApi
from mwatch.diagnose.forward import Forward, find_pages, find_sidecar
from mwatch.diagnose.job import JobRequest
from mwatch.diagnose.job_page import report_with
from mwatch.errors import InputError
from mwatch.export.http.server import Page, Request
from mwatch.export.http.server import Pages as ServedPages
from mwatch.kube.access import Access
from mwatch.kube.errors import Unavailable
from mwatch.report.run_report import RunReport
from mwatch.watch.page import LivePage, html_page
from support.builders.diagnose import BEGAN, answering, events_of, iteration, words
from support.builders.story import Watch
from support.fakes.job_api import CONTROLLER, access_to, job_api, kubeconfig_of, sidecar_of
from support.runs.fleet_page_runs import Pages, job, turning
from support.runs.http_runs import get, served
from support.runs.live_runs import environment
from support.waiting import until

STEPS = [(5.0 + n, iteration(n)) for n in range(1, 20)]
REQUEST = JobRequest("pytorchjob/train", "ns")


class Run:
    """A run with a live page, as a sidecar serves it."""

    def __init__(self) -> None:
        watch = Watch()
        watch.says(*(text for _, text in STEPS))
        self.report: RunReport = watch.story()
        self.page = LivePage(list, read=lambda: self.report)

    def pages(self) -> ServedPages:
        return {**self.page.pages(), "/v1/secret": lambda request: Page(b"not for people\n")}


@contextmanager
def watched_job() -> Iterator[tuple[Run, FakeApi, Access]]:
    """Two pods; the sidecar of the second one sees iterations, and has a page."""
    run = Run()
    pods = [answering("train-0", at=30.0), answering("train-1", events=events_of(STEPS), at=30.0)]
    with served(run.pages()) as server:
        behind = {sidecar_of("train-1"): server.port}
        with job_api(pods, behind=behind) as api, access_to(api) as access:
            yield run, api, access


def other_pages() -> ServedPages:
    """Of a controller of another release: links from the root, and no policy."""

    def fleet(request: Request) -> Page:
        return html_page('<h1>jobs</h1><a href="/jobs/ns/train">train</a>', "x")

    def page(request: Request) -> Page:
        if request.parameter != "train":
            return Page(b"no such job\n", status=HTTPStatus.NOT_FOUND)
        return Page(b"<h1>train</h1><script>bad()</script>", "text/html; charset=utf-8")

    return {"/": fleet, "/jobs/ns/{}": page}


def address_of_changes(port: int, path: str) -> str:
    """Where the script of a page asks, seen from the page."""
    body = get(port, path)[1].decode()
    found = re.search(r'data-page="(\w+)" data-after="([\w.]+)" data-address="([^"]+)"', body)
    assert found is not None
    address = html.unescape(found[3])
    return f"{address}{'&' if '?' in address else '?'}page={found[1]}&after={found[2]}"


def test_a_sidecars_page_is_followed_through_the_api_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mwatch.watch.page.MIN_SECONDS", 0.0)
    with watched_job() as (run, _, access):
        found = find_pages(access, REQUEST)
        assert found.is_sidecar and found.path == "/"
        assert found.text.startswith("the sidecar of pod train-1, which sees this pod only;")
        with served(Forward(access, found).pages()) as server:
            status, body, headers = get(server.port, "/")
            assert status == 200 and b"<h1>run</h1>" in body
            assert "connect-src 'self'" in headers["Content-Security-Policy"]
            shown = re.search(rb'data-page="(\w+)" data-after="([\w.]+)"', body)
            assert shown is not None
            place = f"/page.json?page={shown[1].decode()}&after={shown[2].decode()}"
            run.report = replace(run.report, iteration=77)

            def figures() -> str:
                return str(json.loads(get(server.port, place)[1])["parts"].get("figures", ""))

            until(lambda: "77" in figures())
            assert get(server.port, "/v1/secret")[0] == 404
            assert get(server.port, "/", Host="evil.example")[0] == 403
            assert get(server.port, "/", method="POST")[0] == 405


def test_the_controllers_pages_come_first_and_are_followed() -> None:
    jobs = Pages([job("train").run(60), job("other").run(30)])
    with turning(jobs) as controller, watched_job() as (_, api, access):
        api.behind = {**api.behind, CONTROLLER: controller.port}
        found = find_pages(access, REQUEST)
        assert (found.path, found.is_sidecar) == ("/jobs/ns/train?kind=PyTorchJob", False)
        assert find_pages(access, JobRequest("", "ns")).path == "/"
        with served(Forward(access, found).pages()) as server:
            address = f"http://127.0.0.1:{server.port}/"
            fleet = get(server.port, "/")[1].decode()
            links = re.findall(r'href="(jobs/[^"]+)"', fleet)
            assert sorted(links) == ["jobs/ns/other", "jobs/ns/train"]
            for page in ("/", found.path, f"/{links[0]}"):
                changes = urljoin(urljoin(address, page), address_of_changes(server.port, page))
                status, body, _ = get(server.port, changes.removeprefix(address[:-1]))
                assert status == 200 and json.loads(body)["wait"] > 0
            assert get(server.port, "/jobs/ns/nothing")[0] == 404
        report = report_with(access, REQUEST, BEGAN + 30.0)
        assert report.iteration == jobs.fleets[0].watch.engine.job.attempt.iteration
        assert not [each for each in report.notes if each.startswith("history")]


def test_links_stay_here_and_a_page_without_a_policy_runs_no_script() -> None:
    with served(other_pages()) as controller, watched_job() as (_, api, access):
        api.behind = {**api.behind, CONTROLLER: controller.port}
        found = find_pages(access, JobRequest("train", "ns"))
        with served(Forward(access, found).pages()) as server:
            assert b'href="/jobs/ns/train"' in get(server.port, "/")[1]
            status, _, headers = get(server.port, found.path)
            assert (status, headers["Content-Security-Policy"][:7]) == (200, "sandbox")
            status, body, _ = get(server.port, "/jobs/ns/other")
            assert (status, body) == (404, b"no such job\n")


def test_a_pod_that_goes_away_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwatch.diagnose.forward._LOOK_SECONDS", 0.0)
    with watched_job() as (_, api, access):
        found = find_pages(access, REQUEST)
        look_again = partial(find_sidecar, access, REQUEST)
        with served(Forward(access, found, look_again).pages()) as server:
            (port,) = api.behind.values()
            api.behind = {sidecar_of("train-0"): port}
            assert get(server.port, "/")[0] == 404
            until(lambda: get(server.port, "/")[0] == 200)


def test_without_an_answer_the_error_names_the_fix() -> None:
    with job_api([words("train-0"), words("train-1")]) as api, access_to(api) as access:
        with pytest.raises(Unavailable, match="'mwatch report train -n ns' makes a page of the lo"):
            find_pages(access, REQUEST)
        with pytest.raises(
            Unavailable, match=r"no controller in namespace ns .*; name a job: train"
        ):
            find_pages(access, JobRequest("", "ns"))
        with pytest.raises(InputError, match="did you mean train"):
            find_pages(access, JobRequest("tran", "ns"))


def test_the_command_serves_until_ctrl_c_and_ends_cleanly(tmp_path: Path) -> None:
    with watched_job() as (_, api, _):
        known = kubeconfig_of(api, tmp_path / "config")
        line = [sys.executable, "-m", "mwatch", "ui", "train", "-n", "ns", "--port", "0"]
        env = {**environment(), "KUBECONFIG": str(known), "BROWSER": "/bin/false"}
        process = subprocess.Popen(
            line, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            found = re.match(r"http://127\.0\.0\.1:(\d+)/  \(Ctrl-C", process.stdout.readline())
            assert found is not None, process.communicate()[1]
            assert b"<h1>run</h1>" in get(int(found[1]), "/")[1]
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, said.count("\n")) == (0, 1)
    assert said.startswith("mwatch: pages of the sidecar of pod train-1")
    assert os.listdir(tmp_path) == ["config"]
