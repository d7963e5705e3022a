# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's own parts: the table, the calls of an audit log, the job, nodes and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster import kwok, processes, training_job
from benchmarks.cluster.calls import FILE, Call, Calls, counted, within
from benchmarks.cluster.figures import Figures, as_record, growth, missed, table
from benchmarks.cluster.training import Kind, Training

SMALL = Figures(
    pods=64, start_seconds=9.0, seen_seconds=7.0, cpu=0.03, memory_bytes=64 << 20,
    peak_bytes=80 << 20, polls_per_second=12.8, fleet_cpu=0.01, calls_per_minute=60.0,
    verdict_seconds=6.0, decided_seconds=7.0, first_delete_seconds=2.0, last_delete_seconds=4.0,
    acting_calls=100, deletes=64, most_calls={"delete pods": 64}, polled_share=1.0,
)  # fmt: skip
LARGE = replace(SMALL, pods=2048, cpu=0.6, verdict_seconds=None, deletes=2048)


def test_a_table_shows_each_size_and_how_it_grows() -> None:
    lines = table([SMALL, LARGE]).splitlines()
    assert [each.strip() for each in lines[0].split("|")[2:-1]] == [
        "64 pods", "2,048 pods", "64 to 2048",
    ]  # fmt: skip
    cpu = next(line for line in lines if "CPU of one core at rest" in line)
    assert [each.strip() for each in cpu.split("|")[2:-1]] == ["3.0 %", "60.0 %", "x 20.0"]


def test_what_was_not_seen_is_no_number_and_has_no_growth() -> None:
    line = next(line for line in table([SMALL, LARGE]).splitlines() if "stop to verdict" in line)
    assert [each.strip() for each in line.split("|")[2:-1]] == ["6.0 s", "not seen", ""]
    assert growth(0.0, 5.0) == ""


def test_a_target_is_missed_by_name() -> None:
    assert not [*missed(SMALL)]
    assert [*missed(LARGE)] == ["2048 pods: no verdict"]
    slow = replace(SMALL, polled_share=0.7)
    assert [*missed(slow)] == ["64 pods: 70% of the polls at 3% of a core"]
    dear = replace(LARGE, verdict_seconds=6.0, page_cpu=0.75)
    assert [*missed(dear)] == ["2048 pods: the pages cost 25% more"]
    assert not [*missed(replace(SMALL, page_cpu=0.06))]
    assert [*missed(replace(SMALL, last_delete_seconds=None, deletes=60))] == [
        "64 pods: 60 deleted"
    ]


def test_figures_are_plain_for_machines() -> None:
    assert json.loads(json.dumps(as_record(SMALL)))["pods"] == 64


def audit(verb: str, resource: str, second: int, code: int = 200) -> bytes:
    record = {
        "verb": verb,
        "objectRef": {"resource": resource},
        "requestReceivedTimestamp": f"2026-11-15T09:00:{second:02d}.000000Z",
        "stageTimestamp": f"2026-11-15T09:00:{second:02d}.500000Z",
        "responseStatus": {"code": code},
    }
    return json.dumps(record).encode() + b"\n"


def test_calls_are_read_once_and_a_line_that_is_being_written_later(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(audit("list", "pods", 0))
    calls = Calls(tmp_path)
    assert calls.new() == []
    line = audit("delete", "pods", 7)
    with path.open("ab") as file:
        file.write(audit("delete", "pods", 5) + line[:20])
    (first,) = calls.new()
    assert (first.name, first.code, first.ended_at - first.began_at) == ("delete pods", 200, 0.5)
    with path.open("ab") as file:
        file.write(line[20:])
    (second,) = calls.new()
    assert second.began_at == first.began_at + 2


def test_calls_are_counted_by_kind_and_by_time() -> None:
    made = [Call(at, at, verb, "pods", 200) for at, verb in ((1.0, "list"), (2.0, "delete"))]
    assert counted([*made, made[1]]) == {"delete pods": 2, "list pods": 1}
    assert [*within(made, 2.0, 9.0)] == [made[1]]


def test_the_job_has_one_master_and_asks_for_whole_nodes() -> None:
    job = training_job.plain(512)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 511)
    spec = replicas["Worker"]["template"]["spec"]
    limits = spec["containers"][0]["resources"]["limits"]
    node = kwok.node(3)
    assert str(limits["nvidia.com/gpu"]) == node["status"]["allocatable"]["nvidia.com/gpu"]
    assert spec["nodeSelector"].items() <= node["metadata"]["labels"].items()
    assert spec["tolerations"][0]["key"] == node["spec"]["taints"][0]["key"]


def test_a_training_waits_for_the_one_that_stopped() -> None:
    training = Training(100.0)
    training.stops(3, 110.5)
    assert training.kind(3, 110.0) is Kind.MOVING
    assert training.kind(3, 110.6) is Kind.STOPPED
    assert training.kind(4, 110.6) is Kind.MOVING
    assert training.kind(4, 111.0) is Kind.WAITING
    assert training.iteration(200.0) == 10


def test_a_process_is_found_by_its_words_and_costs_something() -> None:
    words = [
        sys.executable,
        "-c",
        "import sys; print(flush=True); sys.stdin.read()",
        "a bench",
        "process",
    ]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()
        found = processes.find(os.getpid(), "a bench", "process")
        assert found == child.pid
        assert processes.cpu_seconds(found) >= 0.0
        assert processes.memory_bytes(found, "VmHWM") >= processes.memory_bytes(found) > 1 << 20
        child.stdin.close()
        child.wait(60)
        child.stdout.close()
    finally:
        child.kill()
        child.wait()


def test_there_is_a_core_for_the_measured_and_one_for_the_rest_where_there_are_two() -> None:
    cores = processes.Cores()
    assert {cores.measured, cores.rest} <= os.sched_getaffinity(0)
    assert cores.are_two is (len(os.sched_getaffinity(0)) > 1)
