# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of all pods of a job, collected before the job is restarted: `DIR/JOB/INCIDENT/POD.tgz`.

All sidecars save at the same time. Bundles are then downloaded, the blamed pod's first, within
limits of number, size and time; the others stay in their pods. A pod that does not answer is listed
with the reason and delays nothing. Old incidents are pruned; bundles that wrappers wrote next to
the checkpoints are not touched.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from mwatch.model.incident import SavedEvidence, is_incident_id
from mwatch.remediate.case import RestartTask
from mwatch.remediate.pod_client import NoAnswer, PodAddress, download, get, post
from mwatch.runtime.fanout import TimedOut, gather
from mwatch.runtime.files import write_private

MANIFEST = "pods.json"
MAX_INCIDENTS_PER_JOB = 16
MAX_BYTES = 16 << 30
_WORKERS = 64
_REQUEST_SECONDS = 5.0
_RETRY_SECONDS = 0.5
_MAX_DOWNLOADS = 64
_MAX_BUNDLE_BYTES = 256 << 20
_MAX_TOTAL_BYTES = 4 << 30
_MAX_NAMED = 32
_FOLDER_SECONDS = 5.0
_DOWNLOADED, _IN_POD = "fetched", "in the pod"


class EvidenceStore:
    def __init__(self, root: Path | None, seconds: float) -> None:
        """`root` None: bundles stay in their pods."""
        self._root = root
        self._seconds = seconds

    def save(self, task: RestartTask) -> SavedEvidence:
        """Within the time limit, even if the file system of `root` hangs."""

        def save() -> SavedEvidence:
            folder = evidence_folder(self._root, task.job.name, task.id)
            reason = f"before {task.action.value}: {task.reason}"
            return collect(
                task.pods, task.token, reason, folder,
                seconds=self._seconds, unreachable=task.unreachable,
            )  # fmt: skip

        seconds = self._seconds + _FOLDER_SECONDS
        found = gather({"evidence": save}, seconds=seconds, workers=1)["evidence"]
        if isinstance(found, TimedOut):
            return SavedEvidence("", (), (f"evidence: {found.why}",))
        assert isinstance(found, SavedEvidence)
        return found


def collect(
    pods: Sequence[PodAddress],
    token: str,
    reason: str,
    folder: Path | None,
    *,
    seconds: float,
    unreachable: Sequence[tuple[str, str]] = (),
) -> SavedEvidence:
    """`pods`: the most informative first. `unreachable`: names of other pods, with the reason.
    `folder` None: nothing is downloaded."""
    missing = dict(unreachable)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            missing["here"] = f"{folder}: {error.strerror}"
            folder = None
    work = _Collector(token, time.monotonic() + seconds, folder)
    requests = {each.pod: partial(work.request, each, reason) for each in pods}
    ids, problems = _gather(requests, min(2 * _REQUEST_SECONDS, work.left()))
    missing |= problems
    saving = [each for each in pods if each.pod in ids]
    chosen = saving[:_MAX_DOWNLOADS] if folder is not None else []
    waits = {
        each.pod: partial(work.download if each in chosen else work.wait, each, ids[each.pod])
        for each in saving
    }
    states, problems = _gather(waits, work.left())
    missing |= problems
    listed = [f"{pod}: {why}" for pod, why in sorted(missing.items())]
    if folder is not None:
        about = {
            each.pod: {
                "uid": each.uid,
                "bundle": ids.get(each.pod),
                "state": states.get(each.pod, "missing"),
                "problem": missing.get(each.pod),
            }
            for each in pods
        }
        text = json.dumps({"version": 1, "pods": about, "missing": listed}, indent=1)
        try:
            write_private(folder / MANIFEST, text.encode())
        except OSError as error:
            listed.append(f"{MANIFEST}: {error.strerror}")
    if len(listed) > _MAX_NAMED:
        listed[_MAX_NAMED:] = [f"and {len(listed) - _MAX_NAMED} more"]
    files = sorted(f"{pod}.tgz" for pod, state in states.items() if state == _DOWNLOADED)
    files[_MAX_NAMED:] = []
    if inside := sum(state == _IN_POD for state in states.values()):
        files.append(f"{inside} bundles in their pods")
    return SavedEvidence("" if folder is None else str(folder), tuple(files), tuple(listed))


class _Collector:
    """The requests to the sidecars; each raises NoAnswer if there is no evidence."""

    def __init__(self, token: str, until: float, folder: Path | None) -> None:
        self._token = token
        self._until = until
        self._folder = folder
        self._bytes = 0

    def left(self) -> float:
        return self._until - time.monotonic()

    def request(self, pod: PodAddress, reason: str) -> str:
        """Start saving and return the id of the bundle."""
        body = {"reason": reason[:400], "wait_seconds": 0}
        seconds = min(_REQUEST_SECONDS, self.left())
        reply = post(pod, "/v1/evidence", self._token, body, seconds)
        id = reply.body.get("id")
        if reply.status not in (200, 202) or not isinstance(id, str):
            raise NoAnswer(reply.error)
        return id

    def download(self, pod: PodAddress, id: str) -> str:
        assert self._folder is not None
        target = self._folder / f"{pod.pod}.tgz"
        while self.left() > 0:
            room = max(0, min(_MAX_BUNDLE_BYTES, _MAX_TOTAL_BYTES - self._bytes))
            try:
                reply = download(
                    pod, f"/v1/evidence/{id}.tgz", self._token, target,
                    seconds=self.left(), max_bytes=room,
                )  # fmt: skip
            except NoAnswer as error:
                raise NoAnswer(f"not fetched: {error}") from None
            if reply is None:
                self._bytes += target.stat().st_size
                return _DOWNLOADED
            if reply.status not in (404, 503):
                raise NoAnswer(reply.error)
            self._sleep(_RETRY_SECONDS)
        raise NoAnswer("not finished in time")

    def wait(self, pod: PodAddress, id: str) -> str:
        """Wait until the bundle is complete in its pod."""
        while self.left() > 0:
            seconds = min(_REQUEST_SECONDS, self.left())
            bundles = get(pod, "/v1/evidence", self._token, seconds).body.get("bundles")
            for each in bundles if isinstance(bundles, list) else ():
                if isinstance(each, dict) and (each.get("id"), each.get("state")) == (id, "there"):
                    return _IN_POD
            self._sleep(4 * _RETRY_SECONDS)
        raise NoAnswer("not finished in time")

    def _sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, max(0.0, self.left())))


def _gather(
    requests: Mapping[str, Callable[[], str]], seconds: float
) -> tuple[dict[str, str], dict[str, str]]:
    """Answers, and problems, by pod."""
    found = gather(requests, seconds=max(0.1, seconds), workers=_WORKERS)
    problems = {pod: each.why for pod, each in found.items() if isinstance(each, TimedOut)}
    return {pod: each for pod, each in found.items() if pod not in problems}, problems


def evidence_folder(root: Path | None, job: str, id: str) -> Path | None:
    """The folder for a new incident, after old ones have made room; None: nothing is kept here."""
    if root is None:
        return None
    with suppress(OSError):
        prune(root, job)
    return root / job / id


def prune(
    root: Path, job: str, *, most: int = MAX_INCIDENTS_PER_JOB, max_bytes: int = MAX_BYTES
) -> None:
    """Remove the oldest incidents; their names sort by time."""
    mine = sorted(_incidents(root / job))
    for folder in mine[: max(0, len(mine) - most + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    every = sorted(
        (each for place in _folders(root) for each in _incidents(place)), key=lambda path: path.name
    )
    sizes = {each: sum(file.lstat().st_size for file in each.iterdir()) for each in every}
    while every and sum(sizes[each] for each in every) > max_bytes:
        shutil.rmtree(every.pop(0), ignore_errors=True)


def _folders(root: Path) -> Iterator[Path]:
    return (each for each in root.iterdir() if each.is_dir() and not each.is_symlink())


def _incidents(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [each for each in _folders(place) if is_incident_id(each.name)]
