# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods an attempt has lost to somebody outside, and whether what is left can only wait.

A pod counts that took part in the attempt, as long as that attempt lasts. What its own job's
controller took away with the job, or mwatch itself, does not; nor does one that training went on
without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mwatch.model.job import Job
from mwatch.model.kube_facts import KubeFacts
from mwatch.model.kube_pod import KubePod

_WENT_ON_SECONDS = 60.0
"""Ranks that are left may finish a step or two."""


class _Lost(NamedTuple):
    attempt: int
    gone_at: float | None
    """None: it is still on its way out."""


class Losses:
    def __init__(self) -> None:
        self._lost: dict[str, _Lost] = {}
        self._excused: set[str] = set()

    @property
    def gone_at(self) -> float | None:
        """When the last of them had gone; None: none has, or one still goes."""
        moments = [each.gone_at for each in self._lost.values()]
        known = [each for each in moments if each is not None]
        return max(known) if known and len(known) == len(moments) else None

    def see(self, facts: KubeFacts, job: Job) -> KubeFacts:
        """With those alone that count."""
        here = {pod.uid for pod in facts.pods}
        self._excused &= {pod.uid for pod in facts.left}
        kept: dict[str, _Lost] = {}
        for pod in facts.left:
            known = self._lost.get(pod.uid, _Lost(job.attempt.number, None))
            if pod.uid not in here and known.gone_at is None:
                known = known._replace(gone_at=facts.now)
            if self._is_excused(pod, known, facts, job):
                self._excused.add(pod.uid)
            elif pod.name in job.streams:
                kept[pod.uid] = known
        self._lost = kept
        return replace(facts, left=tuple(pod for pod in facts.left if pod.uid in kept))

    def _is_excused(self, pod: KubePod, known: _Lost, facts: KubeFacts, job: Job) -> bool:
        if pod.uid in self._excused or pod.uid in facts.ours or facts.wants_no_pods:
            return True
        went_on = known.gone_at is not None and (
            job.attempt.last_progress > known.gone_at + _WENT_ON_SECONDS
        )
        return known.attempt != job.attempt.number or went_on
