# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""No planted secret leaves the controller, even if sidecars and the cluster hand it all of them.

Every form of the table in every text that comes from a pod or from Kubernetes. Searched are the
ledger, Events, the history, notifications (a real receiver), the pages, `/v1/jobs`, the metrics and
the order for a wrapper.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from mwatch.controller.controller import ControllerLog
from mwatch.controller.history import HistoryStore
from mwatch.controller.notices import FleetNotices
from mwatch.controller.server import ControllerPages, ControllerStats, FleetMetrics, job_json
from mwatch.export.metrics.prometheus import Exporter
from mwatch.export.notify.message import incident_message
from mwatch.kube.events import Events
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import CONFIG_MAPS, EVENTS
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.event import Error
from mwatch.model.incident import IncidentRecord, IncidentStage
from mwatch.model.kube.facts import KubeEvent
from mwatch.model.kube.ledger import JobEntry, LedgerData, LedgerNote
from mwatch.model.kube.next_start import NextStart, RestartRequest
from mwatch.model.observation import ProcessExit
from mwatch.model.snapshot.pod import TrainerEnd
from mwatch.remediate.status import RemediationStatus
from support.builders.events import events
from support.fakes.kube_cluster import NAMESPACE, ClusterAccess, FakeCluster
from support.fakes.slack_server import SlackServer, slack_server
from support.repository.planted_forms import TEXTS, plain, secrets_of
from support.runs import http_runs
from support.runs.fleet_page_runs import Pages, turning
from support.runs.http_runs import get
from support.runs.job_monitor_runs import Fleet
from support.runs.remediation_runs import leading_manager
from support.waiting import until

# apprise looks for a module that Python 3.13 removed.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
FORMS = [form for form in TEXTS if "\n" not in form]


def leaks(data: bytes, forms: Sequence[str]) -> list[str]:
    """Those in the data, also as JSON would write them; short ones occur in other words too."""
    secrets = {secret for form in forms for secret in secrets_of(form) if len(secret) >= 7}
    spelt = {each: {each.encode(), json.dumps(each)[1:-1].encode()} for each in secrets}
    return sorted(each for each, ways in spelt.items() if any(way in data for way in ways))


@pytest.fixture
def access() -> ClusterAccess:
    return ClusterAccess(FakeCluster("Never", lambda: 0.0), lambda *_: None)


@pytest.fixture
def slack() -> Iterator[SlackServer]:
    with slack_server() as server:
        yield server


def written(access: ClusterAccess) -> bytes:
    """All objects of the cluster but Secrets, packed texts unpacked."""
    found = [
        json.dumps(each) for path, each in access.cluster.objects.items() if "secrets" not in path
    ]
    for path, each in access.cluster.objects.items():
        if path.endswith("/mwatch-history"):
            packed = [line.split(" ", 2)[2] for line in each["data"].values()]
            found += [zlib.decompress(base64.b64decode(text)).decode() for text in packed]
    return "\n".join(found).encode()


def test_the_search_finds_what_is_there() -> None:
    assert len(FORMS) > 250
    assert leaks("\n".join(map(plain, FORMS)).encode(), FORMS)


def record(text: str) -> IncidentRecord:
    return IncidentRecord(
        "i", "ns/train", 1, Cause.USER_ERROR, text, 1.0, "crashed", text, action=Action.RESTART,
        reason=text, resume_reason=text,
    )  # fmt: skip


def test_no_form_is_written_to_the_ledger_in_any_text(access: ClusterAccess) -> None:
    book = LedgerData()
    for number, form in enumerate(FORMS):
        text = plain(form)
        entry = JobEntry(
            "uid", incidents=(record(text),), notes=(LedgerNote(1.0, text, text, text),),
            acts=(Act(1.0, 1, Action.RESTART, Cause.HANG, fingerprint=text),),
            start=NextStart(2, reason="x" * 280 + " " + text),
            request=RestartRequest("r", 1.0, text, text),
        )  # fmt: skip
        book = book.with_job(f"pytorchjob.train-{number}", entry)
    Ledger(access, NAMESPACE).change(lambda _: book)
    data = access.cluster.objects[CONFIG_MAPS.path(NAMESPACE, "mwatch-ledger")]["data"]
    assert len(data) == len(FORMS)
    assert leaks(written(access), FORMS) == []


def test_no_form_is_in_an_event_an_order_or_a_message(
    access: ClusterAccess, slack: SlackServer
) -> None:
    now = [0.0]
    fleet = Fleet(2)
    emitter = Events(access, "me", clock=lambda: now[0], wall=lambda: now[0])
    messages = []
    for form in FORMS:
        text = plain(form)
        now[0] += 60.0
        assert emitter.emit(fleet.job, "Restarted", text)
        for stage in IncidentStage:
            found = incident_message(record(text), stage, link="x", is_act=True, is_critical=True)
            messages.append(found)
        assert leaks(json.dumps(NextStart(1, reason=text).document(1.0)).encode(), [form]) == []
    assert leaks(written(access), FORMS) == []
    assert sum(path.startswith(EVENTS.path(NAMESPACE, "")) for path in access.cluster.objects) > 200
    assert leaks("\n".join(f"{each.title} {each.body}" for each in messages).encode(), FORMS) == []


class PlantedController:
    """The parts of a controller that write, send and serve, over a cluster in memory."""

    def __init__(self, fleet: Fleet, access: ClusterAccess, url: str) -> None:
        self.fleet, self.log = fleet, list[str]()
        self.manager = leading_manager(access, lambda: fleet.now)
        self.notices = FleetNotices([url], self.manager, None)
        self.history = HistoryStore(access, "ns", self.log.append)
        self._changes = ControllerLog(self.log.append)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.fleet.run(1)
            self.notices.update([self.fleet.watch], self.fleet.now, is_leader=True)
        self._changes.update([self.fleet.watch], is_leader=True, problem="")

    def served(self) -> bytes:
        watch, now = self.fleet.watch, self.fleet.now
        metrics, status = FleetMetrics(now), RemediationStatus()
        stats = ControllerStats(True, 1, {}, 1, {}, 0, 0, 0.1, [status])
        metrics.update([watch], stats, now)
        pages = ControllerPages("ns", metrics, self.manager, lambda: True)
        pages.update([job_json(watch, status, now)])
        shown = Pages([self.fleet])
        shown.entries["train"] = self.manager.entry(watch.key, watch.kube.uid)
        found = Exporter(metrics.snapshots, own=metrics.own).scrape("").body
        with http_runs.served(pages.pages()) as plain_pages, turning(shown) as live:
            for path in ("/v1/jobs", "/v1/jobs/ns/train", "/v1/jobs/ns/train/attempt", "/metrics"):
                found += get(plain_pages.port, path)[1]
            for path in ("/", "/jobs/ns/train", "/jobs/ns/train/story.json"):
                status_code, body, _ = get(live.port, path)
                assert status_code == 200 and body, path
                found += body
        return found

    def work(self) -> bool:
        """Let the tasks in the background end; true: something was announced."""
        self.manager._background.turn(self.fleet.now)
        return bool(self.manager.entry(self.fleet.watch.key, self.fleet.job.uid).announced)

    def close(self) -> None:
        self.manager.close()
        self.notices.close()


# By its shape, in an address, behind a name, and of a service that no rule knows.
WHOLE_WAY = [
    next(form for form in FORMS if each in form)
    for each in ("login with «hf_", "postgres://mlflow:«", "--db-password «", "honeycomb «")
]


@pytest.mark.parametrize("form", WHOLE_WAY, ids=["shape", "address", "name", "unknown"])
def test_what_pods_and_kubernetes_report_is_written_sent_and_served_without_it(
    access: ClusterAccess, slack: SlackServer, form: str
) -> None:
    text = plain(form)
    fleet = Fleet(2).run(20)
    log = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in main\n'
        f"    load({text})\nPermissionError: {text}\n"
    )
    found = [each for each in events(log, faults=True) if isinstance(each, Error)]
    assert found
    fleet.events = (KubeEvent("Pod", "train-0", "uid-train-0", "Failed", text, True, fleet.now, 1),)
    with closing(PlantedController(fleet, access, slack.url)) as controller:
        controller.run(3)
        for pod in fleet.pods:
            for each in found:
                pod.say(fleet.now, each._replace(line=pod.line + 1, rank=pod.rank))
            pod.say(fleet.now, ProcessExit(1, None, None))
            pod.exit = TrainerEnd(fleet.now + pod.skew, 1, None, f"PermissionError: {text}")
            pod.stalls_at = fleet.now
        controller.run(12)
        until(controller.work)
        assert fleet.cause in ("crash", "user_error")
        assert "PermissionError" in slack.wait(1)[0].text
        report = fleet.watch.report(fleet.now)
        assert report is not None
        assert controller.history.save({fleet.watch.key: ("uid", 1.0, report)})
        sent = json.dumps([each.payload for each in slack.all]).encode()
        served = controller.served()
        assert b"PermissionError" in served
        logged = "\n".join(controller.log).encode()
    assert leaks(sent, [form]) == []
    assert leaks(served, [form]) == []
    assert leaks(written(access), [form]) == []
    assert logged
