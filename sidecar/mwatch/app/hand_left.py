# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that a restart left suspended and that no ledger knows of: they are resumed.

So it is after somebody has deleted the ledger while a controller was killed. Which pods were to
go is not known any more: it is waited until none is left. On a node that is gone for good they
never are; then a person resumes the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mwatch.act.gang_restart import ledger_key
from mwatch.act.gang_suspend import restart_of, resume_as_seen
from mwatch.app.hand_ledger import HandLedger
from mwatch.kube.access import Access
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_ledger import Book

RESUMED = "MwatchResumed"


def resume_left(
    access: Access,
    ledger: HandLedger,
    events: Events,
    jobs: Iterable[KubeJob],
    may_act: Callable[[], bool],
) -> None:
    """KubeError where the cluster cannot be seen. `jobs`: as they were last seen."""
    for known in jobs:
        job = find_job(access, known.namespace, known.name, known.kind)
        if job is None or not (id := restart_of(job)) or pods_of(access, job):
            continue
        # Read after the job: a restart is written down before it suspends anything.
        if not _is_known(ledger.refresh(), job, id) and may_act() and resume_as_seen(access, job):
            text = f"left suspended by restart {id}, of which the ledger knows nothing: resumed"
            events.tell(job, RESUMED, text, is_warning=True)


def _is_known(book: Book, job: KubeJob, id: str) -> bool:
    """Or may be: what a newer release wrote cannot be read."""
    key = ledger_key(job.kind, job.name)
    step = book.of(key).step
    return key in book.unread or (step is not None and step.id == id)
