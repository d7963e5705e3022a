# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A verdict on a live job: Kubernetes beside the engine, who it was, what was done, what next."""

from __future__ import annotations

import json
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mwatch.cli.render.report import render_job
from mwatch.cli.shared.json_output import envelope, with_times
from mwatch.diagnose.cluster_facts import JobFacts
from mwatch.diagnose.job import make_report
from mwatch.diagnose.pod_reports import PodReport
from mwatch.diagnose.report import JobReport, write_bundle
from mwatch.diagnose.verdict import locate
from mwatch.errors import InputError
from mwatch.kube.jobs import FoundJob, parse_job_name
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action
from mwatch.model.finding import Culprit
from mwatch.model.kube.facts import KubeEvent, KubeFacts
from mwatch.model.kube.job import JobKind, job_of
from mwatch.model.kube.ledger import JobEntry, LedgerData, LedgerNote
from mwatch.model.kube.node import KubeNode
from mwatch.model.observation import Beat, Observed, RankStack, StackKind
from support.builders.diagnose import (
    BEGAN,
    USUAL,
    answering,
    block,
    events_of,
    iteration,
    log,
    words,
)
from support.builders.job_manifests import job as manifest
from support.builders.kube import pod
from support.repository.json_schema import read_json
from support.repository.secrets_planted import SECRETS

NODES = (KubeNode("n1"),)


def facts(
    told: Sequence[PodReport], at: float, status: dict[str, Any] | None = None, **more: Any
) -> JobFacts:
    body = manifest()
    body["metadata"] |= {"namespace": "ns", "uid": "job-uid", "name": "train",
                         "labels": {"mwatch.dev/watch": "true"},
                         "annotations": more.pop("annotations", {})}  # fmt: skip
    body["status"] = status or {}
    body["spec"] |= more.pop("spec", {})
    kube = job_of(body)
    assert kube is not None
    pods = more.pop("pods", tuple(each.pod for each in told))
    seen = KubeFacts(BEGAN + at, kube, "train", pods, more.pop("events", ()), NODES)
    return JobFacts(FoundJob(kube, body), seen, {}, **more)


def judged(told: Sequence[PodReport], at: float, **more: Any) -> JobReport:
    return make_report(facts(told, at, **more), list(told))


def healthy() -> list[PodReport]:
    zero = words("train-0", log("train-0", [(0.0, line) for line in block(**USUAL)]))
    one = words("train-1", log("train-1", [(5.0 + n, iteration(n)) for n in range(1, 20)]))
    return [zero, one]


def condition(kind: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "message": message}]}


def test_a_healthy_run_exits_with_zero_and_shows_where_it_is() -> None:
    told = judged(healthy(), 25.0)
    assert (told.report.verdict.cause, told.exit_code) == (Cause.HEALTHY, 0)
    body = told.to_json()
    assert body["unavailable"] == body["unseen"], "the old key stays for one release"
    assert body["job"]["iteration"] == 19
    assert body["job"]["pods"] == {"wanted": 2, "running": 2, "answering": 0, "logs_read": 2}
    assert body["recording"]["clock"] == "utc"


def test_the_json_keeps_the_contract_of_a_verdict() -> None:
    body = judged(healthy(), 90.0).to_json()
    assert set(body) >= {"verdict", "decision", "findings", "goodput", "attempts", "job", "checks"}
    assert set(body["verdict"]) == {"cause", "summary", "since", "culprit", "confidence"}
    assert set(body["decision"]) >= {"action", "resume_from", "reason"}
    assert json.loads(json.dumps(body)) == body
    read_json(json.dumps(envelope("job") | with_times(body)), "job")


def test_a_screen_has_at_most_24_lines_and_the_next_command() -> None:
    told = judged(healthy(), 90.0)
    lines = ["".join(text for text, _ in line) for line in render_job(told)]
    assert len(lines) < 24
    assert lines[0].startswith("HANG since iteration 20")
    assert any(line.startswith("type") and "mwatch restart train -n ns" in line for line in lines)
    assert any("20:27:04 train-1:19" in line for line in lines), lines


def test_what_somebody_did_from_outside_explains_the_silence() -> None:
    told = judged(healthy(), 90.0, spec={"runPolicy": {"suspend": True}}, pods=())
    assert told.report.verdict.cause is Cause.SUSPENDED
    assert told.report.decision.action is Action.NONE
    assert told.exit_code == 1


def test_a_succeeded_job_is_finished_and_not_hung() -> None:
    told = judged([words("train-0")], 9000.0, status=condition("Succeeded"), pods=())
    assert (told.report.verdict.cause, told.exit_code) == (Cause.FINISHED, 0)


def test_a_succeeded_job_that_stopped_early_is_reported() -> None:
    one = words("train-1", log("train-1", [(5.0 + n, iteration(n)) for n in range(1, 20)]),
                ended=(25.0, 0, "Completed"))  # fmt: skip
    told = judged([healthy()[0], one], 60.0, status=condition("Succeeded"))
    assert told.report.verdict.cause is Cause.FINISHED_EARLY
    assert told.exit_code == 1
    assert "early-success" in {each.check for each in told.found}


def test_a_failed_job_whose_pods_are_gone_is_a_crash_with_its_message() -> None:
    status = condition("Failed", "PyTorchJob train is failed because 1 Worker replica(s) failed.")
    told = judged([], 60.0, status=status)
    assert told.report.verdict.cause is Cause.CRASH
    assert "1 Worker replica(s) failed" in told.report.verdict.summary


def test_pods_that_run_and_show_nothing_are_blindness_and_exit_with_three() -> None:
    mute = [words(f"train-{n}")._replace(problem="logs are forbidden") for n in range(2)]
    told = judged(mute, 60.0)
    assert (told.report.verdict.cause, told.exit_code) == (Cause.BLIND, 3)
    assert "logs are forbidden" in told.report.verdict.summary


def test_a_job_without_pods_is_not_yet_begun_and_later_a_question() -> None:
    assert judged([], 5.0).report.verdict.cause is Cause.HEALTHY
    late = facts([], 5.0)
    old = replace(late.found.job, created_at=BEGAN - 600.0)
    late = replace(late, found=late.found._replace(job=old), kube=replace(late.kube, job=old))
    found = make_report(late, [])
    assert found.exit_code == 3
    assert "operator" in found.report.verdict.summary


def test_a_node_that_is_not_ready_is_named() -> None:
    told = healthy()
    seen = facts(told, 90.0)
    lost = replace(seen.kube, nodes=(KubeNode("n1", is_ready=False, unready_text="no word"),))
    found = make_report(replace(seen, kube=lost), told)
    assert found.report.verdict.cause is Cause.LOST_POD
    assert found.report.verdict.culprit is not None
    assert found.report.verdict.culprit.node == "n1"
    assert found.next_command == "kubectl describe node n1"


def test_the_chain_goes_from_the_rank_to_its_pod_and_node() -> None:
    beat = Beat(5, 8, 40, "collective", "c0ffee", 42, None)
    told = [answering("train-0", at=9.0), answering("train-1", beats=[(beat, 8.0, 2.0)], at=9.0)]
    found = locate(Culprit(rank=5), told)
    assert found is not None
    assert (found.pod, found.node) == ("train-1", "n1")
    assert locate(None, told) is None
    assert locate(Culprit(rank=77), told) == Culprit(rank=77)


def test_who_printed_the_last_words_of_a_crash_is_named() -> None:
    lines = [(5.0 + n, iteration(n)) for n in range(1, 10)]
    crash = ["Traceback (most recent call last):", '  File "t.py", line 7, in step',
             "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"]  # fmt: skip
    one = words("train-1", log("train-1", [*lines, *((15.0, line) for line in crash)]),
                ended=(16.0, 1, "Error"))  # fmt: skip
    told = judged([healthy()[0], one], 20.0)
    assert told.report.verdict.cause is Cause.OOM
    assert told.report.verdict.culprit is not None
    assert told.report.verdict.culprit.pod == "train-1"
    assert told.next_command.startswith("kubectl logs -n ns train-1 -c pytorch")


def test_what_mwatch_did_comes_from_the_ledger_with_the_newest_first() -> None:
    act = Act(BEGAN + 5.0, 1, Action.RESTART, Cause.HANG, "hang", 10, 12, True)
    entry = JobEntry(
        "job-uid", acts=(act,), notes=(LedgerNote(BEGAN + 9.0, "ann", "pause", "upgrade"),)
    )
    told = judged(healthy(), 25.0, book=LedgerData({"PyTorchJob.train": entry}))
    texts = [each.text for each in told.actions]
    assert texts[0] == "pause by ann: upgrade"
    assert texts[1] == "restarted attempt 1 from checkpoint 10 (hang)"


def test_a_ledger_of_another_job_of_that_name_shows_nothing() -> None:
    act = Act(BEGAN, 1, Action.RESTART, Cause.HANG, "hang", 10, 12, True)
    entry = JobEntry("another", acts=(act,))
    assert judged(healthy(), 25.0, book=LedgerData({"PyTorchJob.train": entry})).actions == ()


def test_events_show_where_the_ledger_may_not_be_read() -> None:
    said = {
        "source": {"component": "mwatch"}, "reason": "Restarted", "message": "from 10",
        "involvedObject": {"uid": "job-uid"}, "lastTimestamp": "2026-05-28T20:26:45Z",
    }  # fmt: skip
    told = judged(healthy(), 25.0, events=())
    assert told.actions == ()
    with_event = replace(told.facts, events=(said,))
    assert [each.text for each in make_report(with_event, healthy()).actions] == [
        "Restarted: from 10"
    ]


def test_the_controllers_word_and_a_pause_stand_first() -> None:
    controller = {
        "remediation": {"text": "held: observe", "last": "would have restarted", "since": BEGAN}
    }
    pause = {"mwatch.dev/pause": '{"who": "ann", "why": "upgrade"}'}
    told = judged(healthy(), 25.0, controller=controller, annotations=pause)
    assert [each.source for each in told.actions] == ["annotation", "controller", "controller"]


def test_sidecars_that_may_not_be_asked_are_reported_and_their_logs_are_enough() -> None:
    zero, one = healthy()
    refused = [
        each._replace(sidecar="pods/proxy is forbidden", is_forbidden=True) for each in (zero, one)
    ]
    told = judged(refused, 25.0)
    assert told.report.verdict.cause is Cause.HEALTHY
    note = "2 sidecars were not asked: you may not get pods/proxy; logs only"
    assert told.report.notes == (note,)


def test_preemption_of_pods_that_run_again_is_history() -> None:
    old = KubeEvent("Pod", "train-0", "", "Preempted", "by others", True, BEGAN, 1)
    assert judged(healthy(), 25.0, events=(old,)).report.verdict.cause is Cause.HEALTHY
    waits = pod("train-0", phase="Pending", node="")
    gone = judged([words("train-0")], 25.0, events=(old,), pods=(waits,))
    assert gone.report.verdict.cause is Cause.PREEMPTED


@pytest.mark.parametrize(
    ("given", "kind"),
    [("gpt", None), ("pytorchjob/gpt", JobKind.PYTORCH_JOB), ("jobsets/gpt", JobKind.JOB_SET),
     ("pytorchjobs.kubeflow.org/gpt", JobKind.PYTORCH_JOB), ("Job/gpt", JobKind.JOB)],
)  # fmt: skip
def test_a_job_is_named_as_kubectl_names_it(given: str, kind: JobKind | None) -> None:
    assert parse_job_name(given) == (kind, "gpt")


def test_an_unknown_kind_is_reported_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match="PyTorchJob"):
        parse_job_name("deployment/gpt")


def test_a_bundle_is_the_owners_alone_and_without_secrets(tmp_path: Path) -> None:
    secret = SECRETS["hugging-face"]
    zero = words("train-0", log("train-0", [(0.0, f"login with {secret}"), (1.0, iteration(1))]))
    told = judged([zero], 25.0)
    names = ("WANDB_API_KEY", "DB_PASSPHRASE", "DB_PWD", "REGISTRY_AUTH", "TOKEN_OF_THE_HUB")
    env = [{"name": name, "value": "plain-words"} for name in names]
    again = json.dumps({"spec": {"env": [{"name": "DB_PASSWORD", "value": "plain-words"}]}})
    spoilt = {
        **told.facts.found.body, "env": env, "data": {"HF_TOKEN": "plain-words"},
        "args": ["--wandb-api-key", "plain-words", "--tokenizer-model", "/data/bpe.model",
                 "--max-tokens", "77123", "--key-passphrase", "plain-words"],
        "metadata": {"managedFields": ["much"], "annotations": {"last-applied": again}},
    }  # fmt: skip
    told = replace(told, facts=replace(told.facts, found=told.facts.found._replace(body=spoilt)))
    file = tmp_path / "out.tgz"
    assert write_bundle(told, file) == "5 files"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        texts = {each.name: archive.extractfile(each) for each in archive}
        read = {name: each.read().decode() for name, each in texts.items() if each is not None}
    files = ("verdict.json", "job.json", "pods.json", "events.json", "logs/train-0.pytorch.log")
    assert set(read) == {f"ns-train/{name}" for name in files}
    whole = "".join(read.values())
    assert secret not in whole and "plain-words" not in whole and "managedFields" not in whole
    assert "/data/bpe.model" in whole and "77123" in whole
    assert "iteration        1/" in read["ns-train/logs/train-0.pytorch.log"]


def test_a_bundle_that_cannot_be_written_is_reported_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match="is a folder"):
        write_bundle(judged(healthy(), 25.0), tmp_path)


def test_a_hung_job_shows_where_the_ranks_of_all_pods_stand() -> None:
    late = RankStack(
        1, StackKind.DATA, "DataLoader.__next__", "data.py:7 in fetch", ("fetch (d.py:7)",)
    )
    wait = RankStack(0, StackKind.COLLECTIVE, "all_reduce", "training.py:3532 in train_step")
    lines = [(float(n), iteration(n)) for n in range(1, 20)]
    told = []
    for rank, stack in enumerate((wait, late)):
        beat = Beat(rank, 2, 19, "compute", "a", 1, None)
        events = [*events_of(lines), Observed(70.0, "", stack)]
        told.append(answering(f"train-{rank}", events=events, beats=[(beat, 89.0, 19.0)], at=90.0))
    report = judged(told, 90.0)
    assert report.report.verdict.cause is Cause.HANG
    culprit = report.report.verdict.culprit
    assert culprit is not None
    assert (culprit.rank, culprit.pod, culprit.place) == (1, "train-1", "data.py:7 in fetch")
    (finding,) = (each for each in report.to_json()["findings"] if each["detector"] == "stalled")
    assert [each["text"] for each in finding["stacks"]] == [
        "rank 0: `all_reduce`, called from training.py:3532 in train_step",
        "rank 1: `DataLoader.__next__`, called from data.py:7 in fetch",
    ]
    screen = ["".join(text for text, _ in line) for line in render_job(report)]
    assert any("stacks" in line and "all_reduce" in line for line in screen)
    assert len(screen) <= 23
