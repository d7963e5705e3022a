# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The charts mwatch and dataset, installed by helm and run by a real node.

The controller comes up with the rights of its chart and no others, and a person who has the
chart's roles is told by `mwatch` what it says. A dataset is made by the Job, whose first pod is
killed in the middle; another has a bad line, and fails at once.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster.control_plane import ControlPlane
from cluster.file_server import FileServer
from cluster.helm import Helm
from cluster.images import MWATCH
from cluster.kube_things import wait_for
from cluster.kubectl import Kubectl
from cluster.node import Node
from cluster.test_diagnose_live import (
    PYTHON,
    Printed,
    listed,
    mwatch_until,
    pytorchjob,
    trainer,
)
from gpt.corpora import gpt2_files, many
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text
from mwatch_gpt.data import index_file
from mwatch_gpt.data.tool import main as make_data
from release.build import package_chart
from support.repository.chart_renders import CHARTS, sets
from support.repository.manifest_files import unlisted_objects_in
from support.runs.dataset_runs import STEPS, lines

pytestmark = pytest.mark.timeout(1200)
NAMESPACE = "charts"
JOB = "hangs"
FIRST, SECOND = list(many(300))[:150], list(many(300))[150:]
_SECONDS = 300.0
_SMALL = json.dumps({"requests": {"cpu": "50m", "memory": "64Mi"}})
_IMAGE = sets(
    f"image.repository={MWATCH.rpartition(':')[0]}", f"image.tag={MWATCH.rpartition(':')[2]}"
)


class Place(NamedTuple):
    cluster: Kubectl
    helm: Helm
    folder: Path
    """What the claim `data` is on the node."""
    server: FileServer
    person: Kubectl
    """Somebody with the roles that the chart makes for people."""

    def get(self, *words: str) -> Any:
        return self.cluster.get(*words, "-n", NAMESPACE)

    def log(self, job: str, step: str) -> str:
        return self.cluster.answer("logs", f"job/{job}", "-c", step, "-n", NAMESPACE) or ""

    def conditions(self, job: str) -> dict[str, str]:
        found = self.get("job", job)["status"].get("conditions", [])
        return {each["type"]: each.get("reason", "") for each in found if each["status"] == "True"}

    def pods(self, job: str) -> list[dict[str, Any]]:
        items = self.get("pods", "-l", f"batch.kubernetes.io/job-name={job}")["items"]
        return [each for each in items if "deletionTimestamp" not in each["metadata"]]

    def story(self) -> str:
        """For who reads why a test failed."""
        events = self.cluster.answer("get", "events", "-n", NAMESPACE, "--sort-by=.lastTimestamp")
        pods = self.cluster.answer("get", "pods", "-A", "-o", "wide")
        return f"{pods}\n{(events or '')[-4000:]}"

    def controller(self) -> dict[str, Any]:
        """Its own word about the job, by its Service."""
        path = f"/api/v1/namespaces/{NAMESPACE}/services/mwatch-controller:9402/proxy/v1/jobs"
        answer = json.loads(self.cluster.answer("get", "--raw", path) or '{"jobs": []}')
        return next((dict(each) for each in answer["jobs"] if each["name"] == JOB), {})


def claim(folder: Path) -> list[dict[str, Any]]:
    about = {"name": "data", "namespace": NAMESPACE}
    size = {"storage": "1Gi"}
    spec = {"capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
    spec |= {"hostPath": {"path": str(folder)}, "claimRef": about}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "charts-data"}}
    wish = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "charts-data"}
    asked = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about}
    return [{**volume, "spec": spec}, {**asked, "spec": {**wish, "resources": {"requests": size}}}]


def a_person(cluster: Kubectl, folder: Path) -> Kubectl:
    """With the chart's roles bound, as its values say that somebody must."""
    who = f"--serviceaccount={NAMESPACE}:person"
    cluster("create", "serviceaccount", "person", "-n", NAMESPACE)
    cluster("create", "rolebinding", "person", "--role=mwatch-view", who, "-n", NAMESPACE)
    role = f"--clusterrole=mwatch-view-{NAMESPACE}"
    cluster("create", "clusterrolebinding", "charts-person", role, who)
    body = json.loads(cluster.kubeconfig.read_text())
    token = cluster("create", "token", "person", "-n", NAMESPACE).strip()
    body["users"][0]["user"] = {"token": token}
    file = folder / "person.kubeconfig"
    file.write_text(json.dumps(body))
    return Kubectl("kubectl", file)


def dataset(place: Place, name: str, *words: str) -> None:
    given = [*_IMAGE, *sets("source=jsonl", f"name={name}", "preprocess.workers=1", "workers=2")]
    given += [word for each in (*STEPS, "convert") for word in sets(f"resources.{each}={_SMALL}")]
    given += sets(f"tokenizer.vocabUrl={place.server.url}/vocab.json")
    given += sets(f"tokenizer.mergesUrl={place.server.url}/merges.txt")
    place.helm("install", name, str(CHARTS / "dataset"), *given, *words, namespace=NAMESPACE)


@pytest.fixture(scope="module")
def place(
    cluster: Kubectl, plane: ControlPlane, node: Node, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """All is installed at once, and each test waits for its own part. The claim is a folder of the
    node, which is this machine."""
    files = tmp_path_factory.mktemp("files")
    gpt2_files(files)
    served = {each.name: each.read_bytes() for each in files.iterdir()}
    served |= {"first.jsonl": lines(*FIRST), "second.jsonl.gz": gzip.compress(lines(*SECOND))}
    server = FileServer(served, waits="second.jsonl.gz")
    folder = plane.folder / "charts-data"
    (folder / "own").mkdir(parents=True)
    bad = lines("one") + b'{"text": "cut\n' + lines("two")
    (folder / "own" / "bad.jsonl").write_bytes(bad)
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.apply(named)
    cluster.apply(*claim(folder))
    helm = Helm(cluster.kubeconfig)
    chart = sets(
        "rbac.people=true", "controller.pollSeconds=1", "monitoring.dashboards.enabled=false"
    )
    with server.serving():
        package_chart("mwatch", files, epoch=0)
        (packaged,) = files.glob("mwatch-*.tgz")
        helm("install", "mwatch", str(packaged), *_IMAGE, *chart, namespace=NAMESPACE)
        made = Place(cluster, helm, folder, server, a_person(cluster, files))
        urls = [{"url": f"{server.url}/{name}"} for name in ("first.jsonl", "second.jsonl.gz")]
        dataset(made, "corpus", *sets(f"files={json.dumps(urls)}"))
        dataset(made, "bad", *sets('files=[{"path": "/data/own/*.jsonl"}]'))
        watched = json.dumps(pytorchjob(JOB, trainer("time.sleep(600)")))
        wish = InjectRequest(MWATCH, python=PYTHON)
        injected = inject_text(watched, "job.json", wish).text
        cluster("apply", "-n", NAMESPACE, "-f", "-", given=json.dumps(as_list(injected)))
        yield made
        cluster("delete", "namespace", NAMESPACE, "--wait=false")


def as_list(text: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": unlisted_objects_in(text)}


def until(is_so: Callable[[], bool], what: str, story: Callable[[], object]) -> None:
    try:
        wait_for(is_so, what, _SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {story()}") from None


def test_the_first_pod_of_a_dataset_is_killed_while_it_downloads(place: Place) -> None:
    assert place.server.asked.wait(_SECONDS), "it asks for the second file"
    (pod,) = place.pods("corpus")
    name = pod["metadata"]["name"]
    began = place.folder / "corpus" / "raw" / "first.jsonl"
    until(began.exists, "the first file", lambda: place.log("corpus", "download"))
    # It ends when it is told to, long before it would be killed.
    words = ("delete", "pod", name, "-n", NAMESPACE, "--grace-period=300")
    place.cluster(*words, seconds=240)
    place.server.go.set()


def test_a_dataset_with_a_bad_line_fails_at_once_and_says_where(place: Place) -> None:
    until(lambda: "Failed" in place.conditions("bad"), "its end", lambda: place.get("pods"))
    assert place.conditions("bad")["Failed"] == "PodFailurePolicy"
    assert len(place.pods("bad")) == 1, "no other pod could do better"
    where = "/data/bad/joined/bad-00000.jsonl:2: not a JSON object"
    until(lambda: where in place.log("bad", "preprocess"), where, place.story)
    assert not list((place.folder / "bad").glob("*_text_document.idx"))


def test_the_controller_is_ready_with_the_rights_of_its_chart(place: Place) -> None:
    def ready() -> int:
        return int(place.get("deployment", "mwatch-controller")["status"].get("readyReplicas", 0))

    until(lambda: ready() == 1, "its Deployment", place.story)

    def sees_all() -> bool:
        told = place.controller()
        return told.get("iteration") == 12 and told["pods"]["answering"] == 2

    until(sees_all, "its sight of the job", place.controller)
    log = place.cluster("logs", "deployment/mwatch-controller", "-n", NAMESPACE)
    assert "403" not in log and "orbidden" not in log, log
    lease = place.get("lease", "mwatch-controller")["spec"]["holderIdentity"]
    assert "mwatch-controller" in lease


def test_a_person_learns_what_the_controller_says(place: Place) -> None:
    """By its Service, with the chart's roles for people and no others."""
    known: dict[str, Any] = {}

    def has_verdict() -> bool:
        known.update(place.controller())
        is_hang = (known.get("verdict") or {}).get("cause") == "hang"
        return is_hang and known["iteration"] == 12

    until(has_verdict, "the verdict", place.controller)
    words = ("diagnose", JOB, "-n", NAMESPACE)
    done = mwatch_until(place.person, *words, "--json", is_so=is_complete)
    assert done.returncode == 1, done.stderr
    body = json.loads(done.stdout)
    told = body["mwatch"]["controller"]
    assert (told["name"], told["uid"]) == (JOB, known["uid"])
    assert told["verdict"]["cause"] == body["verdict"]["cause"] == "hang"
    assert told["verdict"]["since"] == known["verdict"]["since"]
    assert body["unavailable"] == {}
    screen = mwatch_until(
        place.person, *words, is_so=lambda each: each.stdout.startswith("HANG")
    ).stdout
    assert screen.startswith("HANG since iteration 13")
    status = mwatch_until(
        place.person, "status", "-n", NAMESPACE, "--json",
        is_so=lambda each: listed(each, JOB) == ("controller", "hang", 12),
    )  # fmt: skip
    assert len(json.loads(status.stdout)["jobs"]) == 1


def is_complete(done: Printed) -> bool:
    """A busy machine may leave out what does not come in time."""
    body = json.loads(done.stdout) if done.stdout else {}
    return bool(body) and body["unavailable"] == {} and bool(body["mwatch"]["controller"])


def test_the_page_about_monitoring_shows_how_to_look(place: Place) -> None:
    """Its own lines, typed, with the namespace of the test."""
    page = (CHARTS.parents[1] / "docs/workloads/monitoring.md").read_text("utf-8")
    (block,) = re.findall(r"(?ms)^```sh\n(kubectl port-forward.*?)^```", page)
    path = f"{Path(place.cluster.program).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.replace("-n training", f"-n {NAMESPACE}")],
        env={**os.environ, "PATH": path, "KUBECONFIG": str(place.cluster.kubeconfig)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # kubectl says something of each connection in between.
    answers = [each for each in done.stdout.splitlines() if re.match(r"\d|{", each)]
    count, jobs = answers
    assert int(count) > 20 and json.loads(jobs)["jobs"][0]["name"] == JOB


def test_the_second_pod_of_a_dataset_goes_on_and_makes_all_of_it(
    place: Place, tmp_path: Path
) -> None:
    until(lambda: "Complete" in place.conditions("corpus"), "its end", lambda: place.get("pods"))
    assert place.server.gets["first.jsonl"] == 1 and place.server.gets["second.jsonl.gz"] == 2
    left = "download: 1 of 2 files to get"
    until(lambda: left in place.log("corpus", "download"), left, place.story)
    (pod,) = place.pods("corpus")
    states = [*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"]]
    assert tuple(each["name"] for each in states) == STEPS
    ends = [each["state"]["terminated"] for each in states]
    assert {each["exitCode"] for each in ends} == {0}
    for before, after in pairwise(ends):
        assert before["finishedAt"] <= after["startedAt"]
    prefix = place.folder / "corpus" / "corpus-00000_text_document"
    checked = index_file.check(str(prefix), 300)
    counted = f"1 .bin/.idx, {len(FIRST + SECOND)} documents, {checked.tokens} tokens"
    whole = f"count: ALL of corpus: 2 files read, {counted}"
    until(lambda: whole in place.log("corpus", "count"), whole, place.story)
    (tmp_path / "a.jsonl").write_bytes(lines(*FIRST, *SECOND))
    words = ["--input", str(tmp_path / "a.jsonl"), "--output-prefix", str(tmp_path / "a")]
    assert make_data([*words, *gpt2_files(tmp_path), "--append-eod", "--workers", "1"]) == 0
    for ending in ("bin", "idx"):
        ours = (tmp_path / f"a_text_document.{ending}").read_bytes()
        assert Path(f"{prefix}.{ending}").read_bytes() == ours
