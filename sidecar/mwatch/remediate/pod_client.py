# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One request to one pod's sidecar, with the job's token and within a time limit.

No redirect is followed and no proxy is used: the token is for that address alone. Which address
is the pod's the API server has said; what answers there may lie all the same, so its answers are
read within bounds and believed as far as a pod may be believed about itself.

Evidence of all pods of a job before anything is done to it: asked for, waited for, fetched.

All sidecars are asked at once and save at the same time, beside the checkpoints too where their
wrapper can. Bundles are then fetched, the blamed pod's first, a bounded number of them within the
time; of the others it is only asked whether theirs is finished. What could not be had is told,
with the reason: a pod that does not answer holds nobody up.

Where the controller keeps what it fetched: `DIR/JOB/INCIDENT/POD.tgz`, the newest of each job.

Bounded by their number for each job and by the room of all; what the wrappers have put beside the
checkpoints is not touched. A folder that cannot be removed stays, and is no reason not to act.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.model.incident import SavedEvidence, is_incident_id
from mwatch.runtime.fanout import TimedOut, gather
from mwatch.runtime.files import write_private

_MAX_ANSWER = 1 << 20
_CHUNK = 1 << 16


class NoAnswer(Exception):
    """With the reason, in a few words."""


class Reply(NamedTuple):
    status: int
    body: Mapping[str, Any]

    @property
    def error(self) -> str:
        return str(self.body.get("error") or f"status {self.status}")[:200]


class PodAddress(NamedTuple):
    pod: str
    uid: str
    host: str
    port: int


def post(
    where: PodAddress, path: str, token: str, body: Mapping[str, Any], seconds: float
) -> Reply:
    """NoAnswer where there is none in time."""
    return _small(where, "POST", path, token, json.dumps(body).encode(), seconds)


def get(where: PodAddress, path: str, token: str, seconds: float) -> Reply:
    return _small(where, "GET", path, token, None, seconds)


def download(
    where: PodAddress, path: str, token: str, target: Path, *, seconds: float, most: int
) -> Reply | None:
    """Into `target`, whole or not at all; None: done. A reply that is no file is given back."""
    until = time.monotonic() + seconds
    part = target.with_name(target.name + ".part")
    try:
        connection, response = _asked(where, "GET", path, token, None, seconds)
        try:
            if response.status != 200:
                return Reply(response.status, _json(_read(response, until)))
            _copy(connection, response, part, until, most)
        finally:
            connection.close()
        part.replace(target)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(_why(error)) from None
    finally:
        part.unlink(missing_ok=True)
    return None


def _small(
    where: PodAddress, method: str, path: str, token: str, body: bytes | None, seconds: float
) -> Reply:
    until = time.monotonic() + seconds
    try:
        connection, response = _asked(where, method, path, token, body, seconds)
        try:
            return Reply(response.status, _json(_read(response, until)))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(_why(error)) from None


def _asked(
    where: PodAddress, method: str, path: str, token: str, body: bytes | None, seconds: float
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(where.host, where.port, timeout=max(0.1, seconds))
    headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()
    except BaseException:
        connection.close()
        raise


def _read(response: http.client.HTTPResponse, until: float) -> bytes:
    parts, size = list[bytes](), 0
    while chunk := response.read1(_CHUNK):
        parts.append(chunk)
        size += len(chunk)
        if size > _MAX_ANSWER or time.monotonic() > until:
            raise OSError("its answer does not end")
    return b"".join(parts)


def _copy(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    part: Path,
    until: float,
    most: int,
) -> None:
    size = 0
    with part.open("wb") as file:
        while chunk := response.read1(_CHUNK):
            size += len(chunk)
            left = until - time.monotonic()
            if size > most:
                raise OSError(f"its bundle is larger than {most} bytes")
            if left <= 0:
                raise OSError("its bundle does not come in time")
            if connection.sock is not None:
                connection.sock.settimeout(left)
            file.write(chunk)
    expected = response.getheader("Content-Length")
    if expected is not None and expected.isdigit() and int(expected) != size:
        raise OSError("its bundle was cut off")


def _json(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _why(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(words).split())[:200]


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
) -> SavedEvidence:
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
    for pod, found in gather(asks, seconds=max(0.1, work.left()), workers=_WORKERS).items():
        if isinstance(found, TimedOut):
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
    for pod, found in gather(asks, seconds=seconds, workers=_WORKERS).items():
        if isinstance(found, tuple) and not isinstance(found, TimedOut):
            work.ids[pod] = found[0]
        else:
            work.missing[pod] = found.why if isinstance(found, TimedOut) else str(found)


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


def _kept(work: _Work, pods: Sequence[PodAddress]) -> SavedEvidence:
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
    return SavedEvidence("" if work.folder is None else str(work.folder), tuple(told), tuple(named))


MAX_OF_A_JOB = 16
MAX_BYTES = 16 << 30


def evidence_folder(root: Path | None, job: str, id: str) -> Path | None:
    """For a new bundle, after old ones have made room; None: nothing is kept here."""
    if root is None:
        return None
    with suppress(OSError):
        prune(root, job)
    return root / job / id


def prune(root: Path, job: str, *, most: int = MAX_OF_A_JOB, max_bytes: int = MAX_BYTES) -> None:
    """The oldest go; names of incidents sort by their time."""
    mine = sorted(_bundles(root / job))
    for folder in mine[: max(0, len(mine) - most + 1)]:
        shutil.rmtree(folder, ignore_errors=True)
    every = sorted(
        (each for place in _folders(root) for each in _bundles(place)), key=lambda path: path.name
    )
    sizes = {folder: _size(folder) for folder in every}
    while every and sum(sizes[each] for each in every) > max_bytes:
        shutil.rmtree(every.pop(0), ignore_errors=True)


def _folders(root: Path) -> Iterator[Path]:
    return (each for each in root.iterdir() if each.is_dir() and not each.is_symlink())


def _bundles(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [each for each in _folders(place) if is_incident_id(each.name)]


def _size(folder: Path) -> int:
    return sum(each.lstat().st_size for each in folder.iterdir())
