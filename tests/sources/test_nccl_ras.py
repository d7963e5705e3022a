# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NCCL RAS is asked gently, at the right times, and never waited for."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from mwatch.model.observation import Sign, SignState
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.pod import Nccl
from mwatch.parse.ras import read_answer
from mwatch.sources.nccl_client import DEFAULT_ADDRESS, Address, address_of
from mwatch.sources.nccl_ras import MOST_SECONDS, PERIOD_SECONDS, SETTLE_SECONDS, NcclRas
from support.builders.volume import ManualClock
from support.fakes.fake_ras import JSON, MONITOR, TEXT, FakeRas, fake_ras
from support.fakes.ras_answers import Comm, Lost, apart, as_json, as_text, row

WAIT = 60.0
HEALTHY = [as_json(Comm(0xA, {0: step, 1: step})) for step in (5, 6, 7)]


class Bench:
    def __init__(self, address: Address, **options: Any) -> None:
        self.clock = ManualClock()
        self.source = NcclRas(
            address, "pod-0", read_answer, clock=self.clock, wall=self.clock.wall, **options
        )

    def settle(self) -> None:
        """It has been greeted once, and long enough ago."""
        self.ask()
        self.clock.now += SETTLE_SECONDS

    def ask(self, after: float = 20.0) -> Reading[tuple[Any, ...]]:
        self.clock.now += after
        return self.source.read_now(WAIT)

    def finish(self) -> None:
        """Wait for a question that `read` may have begun."""
        for thread in threading.enumerate():
            if thread.name == "mwatch-nccl-ras":
                thread.join(WAIT)

    def states(self, after: float = 20.0) -> dict[int | None, SignState]:
        return states(self.ask(after))


def states(reading: Reading[tuple[Any, ...]]) -> dict[int | None, SignState]:
    assert isinstance(reading, Ok)
    signs = [seen.what for seen in reading.value]
    return {sign.rank: sign.state for sign in signs if isinstance(sign, Sign)}


def refused() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return ("127.0.0.1", made.getsockname()[1])


def test_nobody_there_is_absent_with_the_reasons_that_it_may_have() -> None:
    bench = Bench(refused())
    reading = bench.ask()
    assert isinstance(reading, Absent)
    assert "NCCL_RAS_ENABLE" in reading.reason
    assert bench.source.nccl is None


def test_a_read_gives_an_answer_once_and_never_waits() -> None:
    with fake_ras(*HEALTHY) as server:
        bench = Bench(server.address)
        bench.settle()
        assert isinstance(bench.source.read(), Absent)
        bench.finish()
        assert states(bench.source.read()) == {None: SignState.UNKNOWN}
        assert bench.source.read() == Ok(())
        assert bench.states() == {None: SignState.MOVING}
        assert bench.source.nccl == Nccl(1, 0, 0, 6)


def test_the_moment_of_a_sign_is_that_of_the_question() -> None:
    with fake_ras(*HEALTHY) as server:
        bench = Bench(server.address)
        bench.settle()
        reading = bench.ask()
        assert isinstance(reading, Ok)
        assert [(seen.at, seen.stream) for seen in reading.value] == [(bench.clock.wall(), "pod-0")]


def test_a_service_that_has_just_come_up_is_greeted_and_not_asked() -> None:
    """Asking while communicators are made has brought trainers down (nccl #1669, #2346)."""
    with fake_ras(*HEALTHY) as server:
        bench = Bench(server.address)
        for _ in range(5):
            reading = bench.ask()
            assert isinstance(reading, Absent)
            assert "settled" in reading.reason
        assert server.asked == 0
        bench.clock.now += SETTLE_SECONDS
        assert bench.states() == {None: SignState.UNKNOWN}
        assert server.asked == 1


def test_a_job_that_has_not_settled_is_not_asked_however_long() -> None:
    with fake_ras(*HEALTHY) as server:
        is_settled = False
        bench = Bench(server.address, is_settled=lambda: is_settled)
        bench.settle()
        assert isinstance(bench.ask(9999.0), Absent)
        assert server.asked == 0
        is_settled = True
        assert isinstance(bench.ask(), Ok)


@pytest.mark.parametrize("release", [TEXT, JSON])
def test_nccl_before_2_29_is_asked_only_while_the_job_is_silent(release: int) -> None:
    answer = HEALTHY[0] if release == JSON else as_text([row()])
    with fake_ras(answer, release=release) as server:
        is_silent = False
        bench = Bench(server.address, is_silent=lambda: is_silent)
        bench.settle()
        assert bench.ask() == Ok(()), "it greets: nothing is lost"
        assert bench.source.nccl is None
        assert server.asked == 0
        is_silent = True
        assert isinstance(bench.ask(), Ok)
        assert server.asked == 1
        assert bench.source.nccl is not None
        is_silent = False
        assert bench.ask() == Ok(())
        assert bench.source.nccl is None, "what was told then is old now"


def test_one_pod_of_many_asks_and_the_others_only_greet() -> None:
    with fake_ras(*HEALTHY) as server:
        bench = Bench(server.address, is_asker=lambda: False)
        bench.settle()
        assert bench.ask() == Ok(())
        assert server.asked == 0
        assert bench.source.raw(WAIT) == HEALTHY[0], "evidence is had from every pod"


def test_whoever_wants_it_has_older_ones_asked_as_well() -> None:
    with fake_ras(*HEALTHY, release=JSON) as server:
        bench = Bench(server.address, is_silent=lambda: True)
        bench.settle()
        assert isinstance(bench.ask(), Ok)


def test_nccl_before_2_29_is_not_asked_again_once_a_rank_was_missing() -> None:
    gone = as_json(Comm(0xA, {0: 5}, [Lost(1, is_dead=True)]), lost_comma=True)
    with fake_ras(gone, release=JSON) as server:
        bench = Bench(server.address, is_silent=lambda: True)
        bench.settle()
        bench.ask()
        assert bench.ask() == Ok(())
        assert server.asked == 1
        assert bench.source.nccl is not None
        assert bench.source.nccl.missing_ranks == 1
        with pytest.raises(OSError, match="1762"):
            bench.source.raw(WAIT)


def test_newer_nccl_is_asked_on_when_a_rank_is_missing() -> None:
    gone = as_json(Comm(0xA, {0: 5}, [Lost(1, is_dead=True)]))
    with fake_ras(gone, release=MONITOR) as server:
        bench = Bench(server.address)
        bench.settle()
        bench.ask()
        assert bench.states()[1] is SignState.DEAD
        assert server.asked == 2


def test_json_is_asked_for_where_it_is_had_and_verbose_text_elsewhere() -> None:
    with fake_ras(*HEALTHY) as server:
        bench = Bench(server.address)
        bench.settle()
        bench.ask()
        assert server.commands[-5:] == [
            "CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR mwatch", "TIMEOUT 3", "STATUS",
        ]  # fmt: skip
    stuck = as_text([row(errors="MISMATCH")], warnings=apart(9, {4: 8}))
    with fake_ras(as_text([row()]), stuck, release=TEXT) as server:
        bench = Bench(server.address, is_silent=lambda: True)
        bench.settle()
        for _ in range(4):
            found = bench.states()
        assert found == {None: SignState.FLAT, 4: SignState.BEHIND}
        assert server.commands[-1] == "VERBOSE STATUS"


def test_a_stopped_process_is_left_for_another_one() -> None:
    """All processes of a pod share the address, and the kernel picks stopped ones too."""
    with fake_ras(*HEALTHY) as server:
        bench = Bench(server.address)
        bench.settle()
        server.silent_connections = 1
        bench.clock.now += 20.0
        assert isinstance(bench.source.read_now(WAIT), Ok)
        assert server.silent_connections == 0


def test_after_a_restart_it_waits_again_until_the_job_has_settled() -> None:
    server = FakeRas(*HEALTHY)
    bench = Bench(server.address)
    bench.settle()
    assert isinstance(bench.ask(), Ok)
    server.close()
    assert isinstance(bench.ask(), Absent)
    assert bench.source.nccl is None


def test_it_is_asked_at_most_every_ten_seconds_and_more_rarely_the_larger_the_job() -> None:
    many = {rank: 1 for rank in range(1024)}
    large = [as_json(Comm(0xA, {rank: step for rank in many})) for step in (1, 2, 3)]
    for answers, seconds, times in ((HEALTHY, PERIOD_SECONDS / 3 - 0.1, 3), (large, 14.0, 4)):
        with fake_ras(*answers) as server:
            bench = Bench(server.address)
            bench.settle()
            for _ in answers:  # from the second on the counts move, and it is calm
                bench.ask()
            for _ in range(times):
                bench.clock.now += seconds
                assert bench.source.read() == Ok(())
            bench.finish()
            assert server.asked == len(answers)
            bench.clock.now += MOST_SECONDS
            bench.source.read()
            bench.finish()
            assert server.asked == len(answers) + 1


def test_the_raw_answer_is_given_for_evidence_twice() -> None:
    with fake_ras(*HEALTHY) as server:
        source = NcclRas(server.address, "pod-0", read_answer)
        assert [source.raw(WAIT), source.raw(WAIT)] == HEALTHY[:2]


def test_evidence_of_a_job_that_nobody_may_ask_is_refused_with_the_reason() -> None:
    with fake_ras(*HEALTHY, release=JSON) as server:
        source = NcclRas(server.address, "pod-0", read_answer)
        with pytest.raises(OSError, match="settled"):
            source.raw(WAIT)
        assert server.asked == 0
    with pytest.raises(ConnectionRefusedError):
        NcclRas(refused(), "pod-0", read_answer).raw(WAIT)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", DEFAULT_ADDRESS),
        ("localhost:28128", ("localhost", 28128)),
        ("10.1.2.3:5", ("10.1.2.3", 5)),
        ("[::1]:28029", ("::1", 28029)),
        ("0.0.0.0:28029", ("localhost", 28029)),
        ("[::]:28029", ("localhost", 28029)),
        ("nonsense", DEFAULT_ADDRESS),
        ("host:99999", DEFAULT_ADDRESS),
    ],
)
def test_the_address_is_the_one_that_nccl_was_given(value: str, expected: Address) -> None:
    assert address_of({"NCCL_RAS_ADDR": value}) == expected
    assert address_of({}) == DEFAULT_ADDRESS


def test_what_is_not_ras_is_a_failure() -> None:
    with fake_ras(*HEALTHY) as server:
        server.greeting = b"HTTP/1.1 400 Bad Request\r\n"
        reading = Bench(server.address).ask()
        assert isinstance(reading, Failed)
        assert "RAS protocol" in reading.error
