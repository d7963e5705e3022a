# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Fault lines: which entry of the catalogue a line matches, and which lines match none."""

from __future__ import annotations

import pytest

from mwatch.config import catalogue
from mwatch.model.event import Error, Fault
from mwatch.model.fault import AvoidNode, Blame, CatalogueEntry, RestartHelps, Role
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from support.builders.events import events, log, megatron_line, only

SHIPPED = catalogue.load()
EXAMPLES = [(entry.id, text) for entry in SHIPPED for text in entry.examples]
NAMES = [f"{id}-{number}" for number, (id, _) in enumerate(EXAMPLES)]


def entry(id: str, pattern: str, role: Role = Role.ROOT) -> CatalogueEntry:
    return CatalogueEntry(
        id=id, title="t", patterns=(pattern,), role=role, blame=Blame.JOB,
        restart_helps=RestartHelps.YES, avoid_node=AvoidNode.NO, fix="m", runbook="r",
        source="s", examples=(), xid=None, cause=None, origin="test:1",
    )  # fmt: skip


def read(text: str, *entries: CatalogueEntry) -> list[str]:
    reader = Reader(Grammar(entries), "f")
    return [event.id for event in only([*reader.feed(text.encode()), *reader.close()], Fault)]


def faults(text: str) -> list[Fault]:
    return only(events(text, faults=True), Fault)


@pytest.mark.parametrize(("id", "text"), EXAMPLES, ids=NAMES)
def test_every_example_of_the_catalogue_gives_its_own_entry(id: str, text: str) -> None:
    assert id in [fault.id for fault in faults(log(text))]


def test_a_line_gives_one_fault_and_the_longest_match_wins() -> None:
    short, long = (
        entry("short", "CUDA error"),
        entry("long", "CUDA error: an illegal memory access"),
    )
    text = "CUDA error: an illegal memory access was encountered\n"
    assert read(text, short, long) == read(text, long, short) == ["long"]


def test_a_benign_entry_wins_over_a_longer_one() -> None:
    benign = entry("benign", "was not called", Role.BENIGN)
    bad = entry("bad", "destroy_process_group.. was not called before program exit")
    text = "WARNING: destroy_process_group() was not called before program exit\n"
    assert read(text, benign, bad) == read(text, bad, benign) == ["benign"]


def test_a_quiet_line_gives_no_fault() -> None:
    text = log(
        megatron_line(1),
        "  error_injection_rate ............ 0",
        "  torchelastic_error_file ......... None",
        "WARNING:rerun_state_machine:Setting RerunStateMachine mode RerunMode.DISABLED",
    )
    roles = {found.id: found.role for found in SHIPPED}
    assert [fault.id for fault in faults(text) if roles[fault.id] is not Role.BENIGN] == []


def test_source_code_inside_a_traceback_is_no_fault() -> None:
    text = log(
        "Traceback (most recent call last):",
        '  File "x.py", line 3, in f',
        '    raise RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB")',
        "ValueError: something else",
    )
    assert faults(text) == []


def test_the_last_line_of_a_traceback_is_a_fault() -> None:
    text = log(
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "x.py", line 3, in f',
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has"
        " a total capacity of 139.80 GiB of which 2.83 GiB is free.",
    )
    assert [(fault.line, fault.rank) for fault in faults(text)] == [(3, 3)]


XID = "NVRM: Xid (PCI:0000:9b:00): {number}, pid={pid}, name=python3, Ch 00000018"


@pytest.mark.parametrize("pid", ["1234", "'<unknown>'", "<unknown>", '"1234"'])
def test_an_xid_is_found_whatever_its_quotes(pid: str) -> None:
    (fault,) = faults(log(XID.format(number=94, pid=pid)))
    assert (fault.id, fault.gpu) == ("xid-94", "0000:9b:00")


@pytest.mark.parametrize("number", sorted(e.xid for e in SHIPPED if e.xid is not None))
def test_every_xid_of_the_catalogue_is_found_by_its_number(number: int) -> None:
    by_number = {found.xid: found.id for found in SHIPPED}
    (fault,) = faults(log(XID.format(number=number, pid=1)))
    assert fault.id == by_number[number]


@pytest.mark.parametrize("number", [999, 7777])
def test_an_unknown_xid_is_a_fault_too(number: int) -> None:
    (fault,) = faults(log(XID.format(number=number, pid=1)))
    assert fault.id == "xid-unknown"


def test_an_xid_is_found_without_any_catalogue() -> None:
    reader = Reader(Grammar(), "f")
    found = reader.feed(log(XID.format(number=94, pid=1)).encode())
    assert [event.id for event in only(found, Fault)] == ["xid-unknown"]


def test_a_kernel_log_names_the_node() -> None:
    line = "Nov 15 00:42:05 gpu-node-7 kernel: [12345.678901] " + XID.format(number=79, pid=1)
    (fault,) = faults(log(line))
    assert (fault.id, fault.node, fault.gpu) == ("xid-79", "gpu-node-7", "0000:9b:00")


def test_an_xid_off_the_bus_has_no_pid() -> None:
    (fault,) = faults("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert (fault.id, fault.gpu) == ("xid-79", "0000:3b:00")


def test_a_long_line_is_bounded() -> None:
    (fault,) = faults(XID.format(number=94, pid=1) + "x" * 100_000 + "\n")
    assert len(fault.text) <= 2000


@pytest.mark.parametrize("rank", [3, 13])
def test_the_label_of_a_task_may_be_padded(rank: int) -> None:
    text = log(
        f"{rank:3d}: [rank{rank}]: Traceback (most recent call last):",
        f'{rank:3d}: [rank{rank}]:   File "/w/train.py", line 301, in <module>',
        f"{rank:3d}: [rank{rank}]: FileNotFoundError: "
        "[Errno 2] No such file or directory: '/data/corpus.idx'",
        f"srun: error: node-c01: task {rank:2d}: Exited with exit code 1",
    )
    found = events(text, faults=True)
    fault = only(found, Fault)[0]
    assert (fault.id, fault.rank) == ("data-file-not-found", rank)
    ends = [(each.host, each.exit_code) for each in only(found, Error) if each.kind == "launcher"]
    assert ends == [("node-c01", 1)]
