# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From a seed to a plan: the same seed gives the same run, whatever ran before it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim import declining, healthy, odd, sick
from sim.plan import Plan

HEALTHY_SHARE = 0.38


def plan_of(seed: int) -> Plan:
    chance = Random(seed)
    table = healthy.ALL + odd.ALL if chance.random() < HEALTHY_SHARE else sick.ALL + declining.ALL
    (make,) = chance.choices([make for _, make in table], [weight for weight, _ in table])
    return replace(make(chance), seed=seed)
