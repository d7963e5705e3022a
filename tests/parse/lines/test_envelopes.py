# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What log shippers and viewers wrap around lines changes neither events nor ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from mwatch.model.event import Error, Event, Fault, Iteration
from mwatch.parse.lines.envelopes import envelope_of
from mwatch.parse.reader import in_order
from support.builders.events import events, log, megatron_line, only

LINES = (
    "using torch.bfloat16 for parameters ...",
    *(megatron_line(number) for number in range(1, 13)),
    "[rank11]: Traceback (most recent call last):",
    '[rank11]:   File "/w/pretrain_gpt.py", line 301, in <module>',
    "[rank11]:     pretrain(\"gpt\", 'a\\b')",
    "[rank11]: FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus.idx'",
    "ERROR: failed (exitcode: 1) local_rank: 3 (pid: 114) of binary: /usr/bin/python",
    "Root Cause (first observed failure):",
    "[0]:",
    "  time      : 2026-03-14_23:06:16",
    "  host      : gpt-worker-1",
    "  rank      : 11 (local_rank: 3)",
    "  exitcode  : 1 (pid: 114)",
    "  traceback : To enable traceback see: https://pytorch.org/docs",
    "============================================================",
)
TIME = "2026-03-14T23:06:11.119923Z"
POD = "gpt-worker-0"


def each(wrap: Callable[[str], object]) -> Callable[[Sequence[str]], str]:
    def text(lines: Sequence[str]) -> str:
        wrapped = (wrap(line) for line in lines)
        return log(*(each if isinstance(each, str) else json.dumps(each) for each in wrapped))

    return text


def table(lines: Sequence[str]) -> str:
    cells = (f'"{line}"'.replace('"', '""')[1:-1] for line in lines)
    rows = [f"2026-03-14 23:06:11.119,train/{POD},{cell}" for cell in cells]
    return log("@timestamp,@logStream,@message", *rows)


def cloudwatch(lines: Sequence[str]) -> str:
    found = [
        {
            "logStreamName": POD,
            "timestamp": 1773526205130,
            "message": line,
            "ingestionTime": 1773526206030,
        }
        for line in lines
    ]
    return json.dumps({"events": found}, indent=4) + "\n"


def cloud_logging(lines: Sequence[str]) -> str:
    found = [{"insertId": "1", "textPayload": line, "timestamp": TIME} for line in lines]
    return json.dumps(found, indent=2) + "\n"


ENVELOPES: dict[str, Callable[[Sequence[str]], str]] = {
    "docker": each(lambda line: {"log": f"{line}\n", "stream": "stderr", "time": TIME}),
    "fluent bit": each(
        lambda line: {
            "@timestamp": TIME,
            "log": line,
            "stream": "stdout",
            "kubernetes": {"pod_name": POD, "container_name": "pytorch"},
        }
    ),
    "stern": each(lambda line: f"{POD} pytorch {line}"),
    "stern in colours": each(lambda line: f"\x1b[91m{POD}\x1b[0m \x1b[31mpytorch\x1b[0m {line}"),
    "stern with times": each(lambda line: f"{POD} pytorch {TIME} {line}"),
    "stern as JSON": each(lambda line: {"message": line, "podName": POD, "containerName": "x"}),
    "logcli": each(lambda line: {"labels": {"pod": POD}, "line": line, "timestamp": TIME}),
    "compose": each(lambda line: f"{POD}   | {line}"),
    "journald": each(lambda line: f"Mar 14 23:06:11 node-a02 train[4411]: {line}"),
    "journald, ISO times": each(lambda line: f"{TIME[:-1]}+0000 node-a02 train[4411]: {line}"),
    "journald as JSON": each(
        lambda line: {
            "__REALTIME_TIMESTAMP": "1773526205130000",
            "_HOSTNAME": "node-a02",
            "MESSAGE": line,
        }
    ),
    "journald with bytes": each(
        lambda line: {"SYSLOG_IDENTIFIER": "train", "MESSAGE": list(f"\x1b[1m{line}".encode())}
    ),
    "aws logs tail": each(lambda line: f"{TIME[:-1]}+00:00 train/{POD} {line}"),
    "CloudWatch table": table,
    "CloudWatch": cloudwatch,
    "Cloud Logging": cloud_logging,
    "Cloud Logging, one a line": each(lambda line: {"textPayload": line, "timestamp": TIME}),
}


def read(text: str, chunk: int | None = None) -> list[Event]:
    return in_order(events(text, faults=True, chunk=chunk))


def bare(found: Sequence[Event]) -> list[Event]:
    """Without times and line numbers."""
    plain: list[Event] = []
    for each in found:
        if isinstance(each, Error):
            each = each._replace(error_line=None, where_line=None)
        plain.append(each._replace(line=0, timestamp=None))
    return plain


@pytest.mark.parametrize("name", ENVELOPES)
def test_an_envelope_changes_nothing_but_times(name: str) -> None:
    found = read(ENVELOPES[name](LINES))
    assert bare(found) == bare(read(log(*LINES)))
    assert only(found, Fault)[0].rank == 11
    assert only(found, Error)[0].rank == 11


@pytest.mark.parametrize("name", [name for name in ENVELOPES if not name.startswith("Cloud")])
def test_the_numbers_of_lines_stay(name: str) -> None:
    numbers = [each.line for each in read(ENVELOPES[name](LINES))]
    assert numbers == [each.line for each in read(log(*LINES))]


@pytest.mark.parametrize("name", ["docker", "fluent bit", "logcli", "aws logs tail"])
def test_the_time_of_the_envelope_counts_where_a_line_has_none(name: str) -> None:
    fault = only(read(ENVELOPES[name](LINES)), Fault)[0]
    assert fault.timestamp == "2026-03-14T23:06:11.119923"


def test_pods_that_write_at_the_same_time_are_kept_apart() -> None:
    torn = [
        line
        for text in LINES[13:17]
        for line in (
            f"gpt-worker-1 pytorch {text.removeprefix('[rank11]: ')}",
            f"gpt-worker-2 pytorch {text.replace('[rank11]: ', '').replace('2]', '13]')}",
        )
    ]
    steps = [f"{POD} pytorch {line}" for line in LINES[:13]]
    raised = [each for each in only(read(log(*steps, *torn)), Error) if each.kind == "traceback"]
    assert [each.error for each in raised] == ["FileNotFoundError"] * 2


def test_a_line_that_docker_cut_is_joined() -> None:
    line = megatron_line(7)
    cut = [
        {"log": line[:150], "stream": "stdout", "time": TIME},
        {"log": f"{line[150:]}\n", "stream": "stdout", "time": TIME},
        {"log": f"{megatron_line(8)}\n", "stream": "stdout", "time": TIME},
    ]
    found = only(read(log(*map(json.dumps, cut))), Iteration)
    assert [(each.iteration, each.line, each.grad_norm) for each in found] == [
        (7, 1, 0.791),
        (8, 3, 0.791),
    ]


def test_an_entry_with_several_lines_is_read_line_by_line() -> None:
    whole = {"message": "\n".join(LINES[13:17]), "logStreamName": POD, "timestamp": 1773526205130}
    after = {"message": megatron_line(9), "logStreamName": POD, "timestamp": 1773526205131}
    found = read(log(json.dumps(whole), json.dumps(after)))
    assert [each.rank for each in only(found, Fault)] == [11]
    assert [(each.error, each.line) for each in only(found, Error)] == [("FileNotFoundError", 1)]
    assert [each.line for each in only(found, Iteration)] == [2]


@pytest.mark.parametrize("chunk", [1, 100, 4096])
def test_pieces_of_any_size_read_alike(chunk: int) -> None:
    text = ENVELOPES["docker"](LINES)
    assert read(text, chunk) == read(text)


@pytest.mark.parametrize(
    "lines",
    [
        [f"epoch-1 step {number} loss 2.5" for number in range(40)],
        [f'{{"step": {number}, "loss": 2.5, "message": "train"}}' for number in range(40)],
        [f"loss | 2.{number}" for number in range(40)],
        [f"{TIME} train/loss: 2.{number}" for number in range(40)],
        ["{", '  "message": "resume"', "}", *(megatron_line(number) for number in range(40))],
    ],
)
def test_what_trainers_print_is_no_envelope(lines: list[str]) -> None:
    assert envelope_of([line.encode() for line in lines]) is None


def test_a_line_of_another_writer_stays_as_it_is() -> None:
    text = ENVELOPES["docker"](LINES[:13]) + megatron_line(13) + "\n"
    found = only(read(text), Iteration)
    assert found[-1].iteration == 13
