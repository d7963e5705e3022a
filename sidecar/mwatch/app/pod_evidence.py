# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of all pods of a job before anything is done to it: asked for, waited for, fetched.

All sidecars are asked at once and save at the same time, beside the checkpoints too where their
wrapper can. Bundles are then fetched, the blamed pod's first, a bounded number of them within the
time; of the others it is only asked whether theirs is finished. What could not be had is told,
with the reason: a pod that does not answer holds nobody up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mwatch.act.private_file import write_private
from mwatch.app.at_once import Missed, ask_all
from mwatch.app.pod_talk import NoAnswer, PodAddress, download, get, post
from mwatch.model.incident import Kept

MANIFEST = "pods.json"
_WORKERS = 64
_ASK_SECONDS = 5.0
_MAX_FETCHED = 64
_MAX_BUNDLE = 256 << 20
_MAX_TOTAL = 4 << 30
_MAX_NAMED = 32
_AGAIN_SECONDS = 0.5


@dataclass(slots=True)
class _Work:
    token: str
    until: float
    folder: Path | None
    ids: dict[str, str] = field(default_factory=dict)
    """Of the bundles that are being made, by pod."""
    there: dict[str, str] = field(default_factory=dict)
    """By pod: `fetched`, or `in the pod`."""
    missing: dict[str, str] = field(default_factory=dict)
    fetched_bytes: int = 0

    def left(self) -> float:
        return self.until - time.monotonic()


def save(
    pods: Sequence[PodAddress],
    token: str,
    reason: str,
    folder: Path | None,
    *,
    seconds: float,
    unseen: Sequence[tuple[str, str]] = (),
) -> Kept:
    """`pods`: the most telling first. `unseen`: pods that cannot be asked, and why. `folder` None:
    there is no room for it here, and what the pods keep themselves is all there is."""
    work = _Work(token, time.monotonic() + seconds, folder)
    work.missing.update(unseen)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            work.missing["here"] = f"{folder}: {error.strerror}"
            work.folder = None
    _ask(work, pods, reason)
    wanted = [each for each in pods if each.pod in work.ids]
    fetched = wanted[:_MAX_FETCHED] if work.folder is not None else []
    asks: dict[str, Callable[[], Any]] = {}
    for each in wanted:
        asks[each.pod] = _fetching(work, each) if each in fetched else _waiting(work, each)
    for pod, found in ask_all(asks, seconds=max(0.1, work.left()), workers=_WORKERS).items():
        if isinstance(found, Missed):
            work.missing[pod] = found.why
        elif found in ("fetched", "in the pod"):
            work.there[pod] = found
        else:
            work.missing[pod] = str(found)
    return _kept(work, pods)


def _ask(work: _Work, pods: Sequence[PodAddress], reason: str) -> None:
    body = {"reason": reason[:400], "wait_seconds": 0}

    def ask(where: PodAddress) -> str | tuple[str]:
        try:
            reply = post(where, "/v1/evidence", work.token, body, min(_ASK_SECONDS, work.left()))
        except NoAnswer as error:
            return str(error)
        id = reply.body.get("id")
        return (id,) if reply.status in (200, 202) and isinstance(id, str) else reply.error

    asks = {each.pod: (lambda each=each: ask(each)) for each in pods}
    seconds = max(0.1, min(2 * _ASK_SECONDS, work.left()))
    for pod, found in ask_all(asks, seconds=seconds, workers=_WORKERS).items():
        if isinstance(found, tuple) and not isinstance(found, Missed):
            work.ids[pod] = found[0]
        else:
            work.missing[pod] = found.why if isinstance(found, Missed) else str(found)


def _fetching(work: _Work, where: PodAddress) -> Callable[[], str]:
    path = f"/v1/evidence/{work.ids[where.pod]}.tgz"

    def fetch() -> str:
        assert work.folder is not None
        target = work.folder / f"{where.pod}.tgz"
        while work.left() > 0:
            room = min(_MAX_BUNDLE, _MAX_TOTAL - work.fetched_bytes)
            try:
                reply = download(
                    where, path, work.token, target, seconds=work.left(), most=max(0, room)
                )
            except NoAnswer as error:
                return f"not fetched: {error}"
            if reply is None:
                work.fetched_bytes += target.stat().st_size
                return "fetched"
            if reply.status not in (404, 503):
                return reply.error
            time.sleep(min(_AGAIN_SECONDS, max(0.0, work.left())))
        return "not finished in time"

    return fetch


def _waiting(work: _Work, where: PodAddress) -> Callable[[], str]:
    id = work.ids[where.pod]

    def look() -> str:
        while work.left() > 0:
            try:
                reply = get(where, "/v1/evidence", work.token, min(_ASK_SECONDS, work.left()))
            except NoAnswer as error:
                return str(error)
            bundles = reply.body.get("bundles")
            for each in bundles if isinstance(bundles, list) else ():
                if isinstance(each, dict) and (each.get("id"), each.get("state")) == (id, "there"):
                    return "in the pod"
            time.sleep(min(4 * _AGAIN_SECONDS, max(0.0, work.left())))
        return "not finished in time"

    return look


def _kept(work: _Work, pods: Sequence[PodAddress]) -> Kept:
    files = [f"{pod}.tgz" for pod, how in work.there.items() if how == "fetched"]
    missing = [f"{pod}: {why}" for pod, why in sorted(work.missing.items())]
    if work.folder is not None:
        about = {
            "version": 1,
            "pods": {
                each.pod: {
                    "uid": each.uid,
                    "bundle": work.ids.get(each.pod),
                    "state": work.there.get(each.pod, "missing"),
                    "problem": work.missing.get(each.pod),
                }
                for each in pods
            },
            "missing": missing,
        }
        try:
            write_private(work.folder / MANIFEST, json.dumps(about, indent=1).encode())
        except OSError as error:
            missing.append(f"{MANIFEST}: {error.strerror}")
    inside = sum(how == "in the pod" for how in work.there.values())
    more = len(missing) - _MAX_NAMED
    named = missing[:_MAX_NAMED] + ([f"and {more} more"] if more > 0 else [])
    told = sorted(files)[:_MAX_NAMED] + ([f"{inside} bundles in their pods"] if inside else [])
    return Kept("" if work.folder is None else str(work.folder), tuple(told), tuple(named))
