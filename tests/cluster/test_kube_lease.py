# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One leader, on the real API server: never two that may act at the same time."""

from __future__ import annotations

import random

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from mwatch.kube.access import Access
from mwatch.kube.lease import Lease
from mwatch.kube.resources import LEASES


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_leads_and_the_second_waits_its_whole_length(access: Access) -> None:
    namespace, clock = things.fresh_namespace(access), Clock()
    one = Lease(access, namespace, "one", clock=clock)
    two = Lease(access, namespace, "two", clock=clock)
    assert one.turn() and not two.turn()

    clock.now += 20.0  # one has stopped renewing: it may not act, and nobody else may yet
    assert not one.may_act()
    assert not two.turn()
    clock.now += 10.5
    assert two.turn()

    assert not one.turn()
    assert one.holder == "two"


def test_a_leader_that_renews_stays(access: Access) -> None:
    namespace, clock = things.fresh_namespace(access), Clock()
    one = Lease(access, namespace, "one", clock=clock)
    two = Lease(access, namespace, "two", clock=clock)
    for _ in range(20):
        clock.now += 5.0
        assert one.turn()
        assert not two.turn()


def test_clocks_on_the_wall_do_not_matter(access: Access) -> None:
    namespace, clock = things.fresh_namespace(access), Clock()
    late = Lease(access, namespace, "late", clock=clock, wall=lambda: 1.0)
    early = Lease(access, namespace, "early", clock=clock, wall=lambda: 4e9)
    assert late.turn()
    assert not early.turn()


def test_a_lease_that_is_given_back_is_taken_at_once(access: Access) -> None:
    namespace, clock = things.fresh_namespace(access), Clock()
    one = Lease(access, namespace, "one", clock=clock)
    two = Lease(access, namespace, "two", clock=clock)
    assert one.turn() and not two.turn()
    one.give_back()
    assert not one.may_act()
    assert two.turn()


def test_two_that_reach_for_it_together_do_not_both_get_it(access: Access) -> None:
    namespace, clock = things.fresh_namespace(access), Clock()
    both = [Lease(access, namespace, name, clock=clock) for name in ("one", "two")]
    assert both[0].turn()
    seen = access.get(LEASES, namespace, "mwatch-controller")
    # Two writes over the same version that was seen: the API server takes one.
    results = [each._write(seen, holder=each._identity) for each in both]
    assert results == [True, False]


def test_in_a_long_mess_there_are_never_two_leaders(access: Access) -> None:
    """Pauses, lost turns and hand-overs by chance; each process has a clock of its own."""
    namespace, chance = things.fresh_namespace(access), random.Random(7)
    clocks = [Clock() for _ in range(3)]
    for index, clock in enumerate(clocks):
        clock.now = 1000.0 * (index + 1)
    leases = [
        Lease(access, namespace, f"p{index}", clock=clock) for index, clock in enumerate(clocks)
    ]
    led = set()
    for _ in range(120):
        passed = chance.choice([1.0, 3.0, 5.0, 12.0])
        for clock in clocks:
            clock.now += passed
        for index in chance.sample(range(3), 3):
            if chance.random() < 0.6:
                leases[index].turn()
        if chance.random() < 0.05:
            chance.choice(leases).give_back()
        leaders = [index for index, lease in enumerate(leases) if lease.may_act()]
        assert len(leaders) <= 1
        led.update(leaders)
    assert len(led) > 1


def test_without_the_api_server_a_leader_stops_by_itself(plane: ControlPlane) -> None:
    access = things.impatient(plane)
    namespace, clock = things.fresh_namespace(access), Clock()
    one = Lease(access, namespace, "one", clock=clock)
    assert one.turn()
    one._access = things.impatient(plane, impersonate="nobody")
    clock.now += 19.0
    assert one.turn() and "cannot get resource" in one.problem
    clock.now += 1.0
    assert not one.turn()
