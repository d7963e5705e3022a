# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Common causes over time: when one begins and ends, who it holds, and that it is told once."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mwatch.app.common_cause import STALLS, Group, Rule, Stalled, Thing, common, things_of
from mwatch.app.fleet_settings import FleetSettings
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.listing import list_all
from mwatch.kube.resources import CLAIMS
from mwatch.model.finding import Severity
from mwatch.model.incident import bundle_id
from mwatch.model.kube_fields import text
from mwatch.model.kube_ledger import MAX_COMMON, Book, CommonCause

if TYPE_CHECKING:
    from mwatch.app.job_watch import JobWatch

WORD = "common-cause"
_MAX_NEWS = 64


class Episode(NamedTuple):
    cause: CommonCause
    group: Group


class CommonCauses:
    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._rule = Rule(
            settings.common_cause_seconds, settings.common_cause_least, settings.common_cause_share
        )
        self._open: dict[Thing, Episode] = {}
        self._news: deque[Episode] = deque(maxlen=_MAX_NEWS)
        self._number = 0
        self.classes: Mapping[str, str] = {}
        """The storage class of each claim; a chore reads it."""
        self.wants_classes = False

    def look(self, jobs: Sequence[JobWatch], now: float) -> None:
        stalled = [each for job in jobs if (each := _stalled(job, now)) is not None]
        self.wants_classes = len(stalled) >= self._rule.least
        groups = self._groups(jobs, stalled) if self.wants_classes else []
        for group in groups:
            known = self._open.get(group.thing) or self._begin(group, now)
            self._open[group.thing] = known._replace(group=group)
        there = {each.thing for each in groups}
        for thing in [each for each in self._open if each not in there]:
            ended = self._open.pop(thing)
            self._news.append(ended._replace(cause=ended.cause._replace(ended_at=now)))

    def news(self) -> list[Episode]:
        """Those that have begun or ended since this was asked."""
        found, self._news = list(self._news), deque(maxlen=_MAX_NEWS)
        return found

    def holding(self, key: str, now: float) -> Episode | None:
        """The one that keeps this job from being restarted."""
        for each in self._open.values():
            is_young = now - each.cause.at < self._settings.common_cause_hold_seconds
            if key in each.group.keys and is_young:
                return each
        return None

    def _groups(self, jobs: Sequence[JobWatch], stalled: list[Stalled]) -> list[Group]:
        things = {
            job.key: things_of(
                job.kube, job.facts.pods, job.facts.nodes or (),
                switch_labels=self._settings.switch_labels, classes=self.classes,
            )
            for job in jobs
        }  # fmt: skip
        return common(stalled, things, self._rule)

    def _begin(self, group: Group, now: float) -> Episode:
        self._number += 1
        id = bundle_id(now, self._number, WORD)
        episode = Episode(CommonCause(id, now, str(group.thing), group.keys), group)
        self._news.append(episode)
        return episode


def written(cause: CommonCause, book: Book) -> Book:
    """With this one, once; the oldest give way."""
    others = tuple(each for each in book.common if each.id != cause.id)
    return replace(book, common=(*others, cause)[-MAX_COMMON:])


def storage_classes(access: Access, namespace: str) -> dict[str, str]:
    """By claim; empty where we may not see them."""
    try:
        listing = list_all(access, CLAIMS, namespace)
    except KubeError:
        return {}
    found = {}
    for each in listing.objects if listing is not None else ():
        name = text(each, "spec", "storageClassName")
        if name:
            found[text(each, "metadata", "name")] = name
    return found


def _stalled(job: JobWatch, now: float) -> Stalled | None:
    if job.assessment is None:
        return None
    since = [
        now if each.since_time is None else each.since_time
        for each in job.assessment.findings
        if each.cause in STALLS and each.severity is not Severity.INFO
    ]
    return Stalled(job.key, min(since)) if since else None
