# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of all pods of a job, collected before the job is restarted: `DIR/JOB/INCIDENT/POD.tgz`.

All sidecars save at the same time. The bundles of the first pods, which include the blamed one, are
then downloaded, within limits of number, size and time. The other bundles stay in their pods; the
restart waits for them only briefly, and the manifest is updated while it runs. A pod that does not
answer is listed with the reason and delays nothing. Old incidents are pruned; bundles that wrappers
wrote next to the checkpoints are not touched.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path

from mwatch import json_codec
from mwatch.model.incident import SavedEvidence, is_incident_id
from mwatch.remediate.case import RestartTask
from mwatch.remediate.pod_client import NoAnswer, PodAddress, Reply, ask_all, download, get
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
_REST_SECONDS = 2.0
"""How long a restart waits for the bundles that are not downloaded."""
_LATE_SECONDS = 4.0
"""Polling interval for those bundles while the restart runs."""
_DOWNLOADED, _IN_POD, _SAVING = "fetched", "in the pod", "being saved"


class EvidenceStore:
    def __init__(self, root: Path | None, seconds: float) -> None:
        """`root` None: bundles stay in their pods."""
        self._root = root
        self._seconds = seconds

    def save(self, task: RestartTask) -> SavedEvidence:
        """Collect evidence within the time limit, even if the file system of `root` hangs."""

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
    ids, problems = work.request(pods, reason)
    missing |= problems
    saving = [each for each in pods if each.pod in ids]
    first, rest = saving[:_MAX_DOWNLOADS], saving[_MAX_DOWNLOADS:]
    bring = work.wait if folder is None else work.download
    waits = {each.pod: partial(bring, each, ids[each.pod]) for each in first}
    states, problems = _gather(waits, work.left())
    missing |= problems
    states |= work.wait_all(rest, ids, min(_REST_SECONDS, work.left()))
    book = _Book(pods, ids, states, missing, folder)
    book.write()
    if late := [each for each in rest if states[each.pod] == _SAVING]:

        def note_the_rest() -> None:
            states.update(work.wait_all(late, ids, work.left(), _LATE_SECONDS))
            book.write()

        threading.Thread(target=note_the_rest, name="mwatch-evidence", daemon=True).start()
    return book.saved()


class _Book:
    """The state of the evidence of each pod."""

    def __init__(
        self,
        pods: Sequence[PodAddress],
        ids: Mapping[str, str],
        states: Mapping[str, str],
        missing: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self._pods, self._ids, self._states = pods, ids, states
        self._missing, self._folder = missing, folder
        self._problems: list[str] = []

    def write(self) -> None:
        """Write the manifest."""
        if self._folder is None:
            return
        about = {
            each.pod: {
                "uid": each.uid,
                "bundle": self._ids.get(each.pod),
                "state": self._states.get(each.pod, "missing"),
                "problem": self._missing.get(each.pod),
            }
            for each in self._pods
        }
        manifest = {"version": 1, "pods": about, "missing": self._listed()}
        try:
            write_private(self._folder / MANIFEST, json_codec.encode_scrubbed(manifest, indent=1))
        except OSError as error:
            self._problems = [f"{MANIFEST}: {error.strerror}"]

    def saved(self) -> SavedEvidence:
        listed = [*self._listed(), *self._problems]
        if len(listed) > _MAX_NAMED:
            listed[_MAX_NAMED:] = [f"and {len(listed) - _MAX_NAMED} more"]
        states = Counter(self._states.values())
        files = sorted(f"{pod}.tgz" for pod, each in self._states.items() if each == _DOWNLOADED)
        files[_MAX_NAMED:] = []
        if inside := states[_IN_POD]:
            files.append(f"{inside} bundles in their pods")
        if saving := states[_SAVING]:
            files.append(f"{saving} bundles being saved in their pods")
        folder = "" if self._folder is None else str(self._folder)
        return SavedEvidence(folder, tuple(files), tuple(listed))

    def _listed(self) -> list[str]:
        return [f"{pod}: {why}" for pod, why in sorted(self._missing.items())]


class _Collector:
    """The requests to the sidecars; `download` and `wait` raise NoAnswer if there is no bundle."""

    def __init__(self, token: str, until: float, folder: Path | None) -> None:
        self._token = token
        self._until = until
        self._folder = folder
        self._bytes = 0

    def left(self) -> float:
        return self._until - time.monotonic()

    def request(
        self, pods: Sequence[PodAddress], reason: str
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Ask all pods to save; return the ids of the bundles and the problems, each by pod."""
        ids: dict[str, str] = {}
        problems: dict[str, str] = {}
        body = {"reason": reason[:400], "wait_seconds": 0}
        left = pods
        while left:
            replies = ask_all(
                left, "/v1/evidence", self._token, body=body,
                each_seconds=min(_REQUEST_SECONDS, self.left()),
                seconds=min(2 * _REQUEST_SECONDS, self.left()),
            )  # fmt: skip
            for pod, reply in replies.items():
                id = None if isinstance(reply, NoAnswer) else reply.body.get("id")
                if isinstance(reply, NoAnswer):
                    problems[pod] = str(reply)
                elif reply.status in (200, 202) and isinstance(id, str):
                    ids[pod] = id
                else:
                    problems[pod] = reply.error
            left = [each for each in left if each.is_new and _is_too_early(replies[each.pod])]
            if not left or self.left() < 2 * _RETRY_SECONDS:
                break
            self._sleep(2 * _RETRY_SECONDS)
        return ids, {pod: why for pod, why in problems.items() if pod not in ids}

    def wait_all(
        self,
        pods: Sequence[PodAddress],
        ids: Mapping[str, str],
        seconds: float,
        every: float = _RETRY_SECONDS,
    ) -> dict[str, str]:
        """Poll, for `seconds` and at least once, until the bundles are complete. Return the state
        of each, by pod."""
        states = {each.pod: _SAVING for each in pods}
        until = time.monotonic() + seconds
        while late := [each for each in pods if states[each.pod] == _SAVING]:
            limit = max(0.1, until - time.monotonic())
            replies = ask_all(
                late, "/v1/evidence", self._token,
                each_seconds=min(_REQUEST_SECONDS, limit), seconds=limit,
            )  # fmt: skip
            for pod, reply in replies.items():
                if not isinstance(reply, NoAnswer) and _is_complete(reply, ids[pod]):
                    states[pod] = _IN_POD
            if time.monotonic() >= until:
                break
            time.sleep(min(every, max(0.0, until - time.monotonic())))
        return states

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
            if _is_complete(get(pod, "/v1/evidence", self._token, seconds), id):
                return _IN_POD
            self._sleep(4 * _RETRY_SECONDS)
        raise NoAnswer("not finished in time")

    def _sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, max(0.0, self.left())))


def _is_too_early(reply: Reply | NoAnswer) -> bool:
    return not isinstance(reply, NoAnswer) and reply.status == HTTPStatus.SERVICE_UNAVAILABLE


def _is_complete(reply: Reply, id: str) -> bool:
    bundles = reply.body.get("bundles")
    return any(
        isinstance(each, dict) and (each.get("id"), each.get("state")) == (id, "there")
        for each in (bundles if isinstance(bundles, list) else ())
    )


def _gather(
    requests: Mapping[str, Callable[[], str]], seconds: float
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the answers and the problems, each by pod."""
    found = gather(requests, seconds=max(0.1, seconds), workers=_WORKERS)
    problems = {pod: each.why for pod, each in found.items() if isinstance(each, TimedOut)}
    return {pod: each for pod, each in found.items() if pod not in problems}, problems


def evidence_folder(root: Path | None, job: str, id: str) -> Path | None:
    """Prune old incidents and return the folder for a new one; None: nothing is stored here."""
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
