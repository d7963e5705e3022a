# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Notifications through the real `apprise` and its Slack plugin, to a server in Slack's form."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

import pytest

from mwatch.errors import InputError
from mwatch.export.notify.message import Level, Message, incident_message, together
from mwatch.export.notify.notifier import Notifier, NotifyLimits
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Culprit, CulpritState
from mwatch.model.incident import IncidentRecord, IncidentStage
from support.fakes.slack_server import SECRET, slack_server
from support.waiting import until

# apprise looks for a module that Python 3.13 removed.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

TOKEN = "ghp_" + "PLANTEDQ7w8E9r0T1y2U3i4O5p6A7s8D9f0G1h2"
HANG = IncidentRecord(
    "20260105T121314Z-a2-hang", "gpt", 2, Cause.HANG, f"no progress for 91 s; url has {TOKEN}",
    0.9, "stalled", culprit=Culprit(1, CulpritState.NEVER_JOINED, pod="worker-1", node="a-17"),
    action=Action.RESTART, reason="two witnesses agree", resume_from=400,
)  # fmt: skip


def message(stage: IncidentStage, record: IncidentRecord = HANG, *, is_act: bool = True) -> Message:
    return incident_message(
        record, stage, link="mwatch ui gpt -n training", is_act=is_act, is_critical=True
    )


def test_the_message_has_verdict_culprit_action_and_link_and_no_secret() -> None:
    opened = message(IncidentStage.OPENED)
    assert opened.title == "gpt: hang (attempt 2)"
    lines = opened.body.splitlines()
    assert lines[0].startswith("no progress for 91 s") and TOKEN not in opened.body
    assert lines[1:] == [
        "culprit: rank 1, pod worker-1, node a-17: never joined",
        "action: restart from checkpoint 400, unless it recovers before: two witnesses agree",
        "see: mwatch ui gpt -n training",
    ]
    assert opened.level is Level.CRITICAL
    observed = message(IncidentStage.OPENED, is_act=False)
    assert "none in mode observe; mwatch would restart from checkpoint 400" in observed.body
    done = replace(HANG, is_carried_out=True, lost_iterations=25)
    acted = message(IncidentStage.ACTED, done)
    assert acted.title == "gpt: restart from checkpoint 400 after hang (attempt 2)"
    recovered = message(IncidentStage.RECOVERED, done)
    assert recovered.title == "gpt: recovered from hang (attempt 2)"
    assert "25 iterations were repeated" in recovered.body
    assert recovered.level is Level.RECOVERED


def test_messages_that_wait_together_become_one_of_bounded_length() -> None:
    many = [Message(f"job-{number}: hang", "text", Level.WARNING) for number in range(500)]
    one = together([*many, Message("job-x: nan", "text", Level.CRITICAL)])
    assert one.title == "job-0: hang, and 500 more"
    assert "job-9: hang" in one.body and "job-10: hang" not in one.body
    assert "and 491 more" in one.body and one.level is Level.CRITICAL


def test_slack_gets_its_own_form_and_a_refusal_is_counted_without_the_url(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with slack_server() as slack:
        Notifier([slack.url]).close(1.0)  # apprise is loaded: its plugin can be directed here
        from apprise.plugins.slack import NotifySlack

        monkeypatch.setattr(NotifySlack, "webhook_url", slack.hooks)
        refused = f"mmosts://{slack.address}/{SECRET}"  # TLS, which the server does not speak
        notifier = Notifier([f"https://hooks.slack.com/services/T1A2/B3C4/{SECRET}", refused])
        notifier.send(message(IncidentStage.OPENED))
        (posted,) = slack.wait(1)
        until(lambda: (notifier.sent, notifier.failed) == (1, 1))
        notifier.close(5.0)
    assert posted.path == f"/services/T1A2/B3C4/{SECRET}"
    (attachment,) = posted.payload["attachments"]
    assert attachment["title"] == "gpt: hang (attempt 2)"
    assert "culprit: rank 1, pod worker-1, node a-17" in attachment["text"]
    assert "icon_url" not in posted.payload, "no request to another host for a picture"
    (problem,) = notifier.problems()
    assert "Mattermost, URL 2" in problem
    shown = "".join(capfd.readouterr()) + problem + repr(notifier)
    assert SECRET not in shown and "T1A2" not in shown


def test_a_service_that_never_answers_delays_nobody_and_holds_one_thread() -> None:
    limits = NotifyLimits(message_seconds=3.0, max_queued=4)
    with slack_server(answers=False) as dead, slack_server() as alive:
        notifier = Notifier([dead.url_without_limit, alive.url], limits=limits)
        began = time.monotonic()
        notifier.send(message(IncidentStage.OPENED))
        dead.wait(1)
        alive.wait(1)
        for _ in range(20):  # a full queue drops its oldest
            notifier.send(message(IncidentStage.ACTED))
        until(notifier.problems)
        assert sum(each.name == "mwatch-notify-send" for each in threading.enumerate()) <= 2
        notifier.send(message(IncidentStage.RECOVERED))
        notifier.close(0.2)
        assert time.monotonic() - began < 50
        (problem,) = notifier.problems()
        assert "no answer within 3 s" in problem and notifier.failed > 16
        assert len(dead.all) == 1, "one request at a time"


@pytest.mark.parametrize("url", [f"nosuch://{SECRET}", SECRET, "slack://too/few", "", "json://"])
def test_a_bad_url_is_refused_by_its_number_and_never_printed(url: str) -> None:
    with pytest.raises(InputError, match="--notify: URL 2 is not an address") as refused:
        Notifier(["json://127.0.0.1:9", url])
    assert SECRET not in str(refused.value)


def test_without_apprise_the_error_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(InputError, match=r'pip install "mwatch\[notify\]"'):
        Notifier(["json://127.0.0.1:9"])
