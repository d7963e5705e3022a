# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Coordinates a job's wrappers through the checkpoint volume: the fencing token and the handshake.

Each attempt number is a file `.mwatch/claims/attempt-N.json` that is created exclusively (a hard
link, or `O_EXCL` where the file system has no links), so exactly one wrapper owns it, regardless of
clocks and caches. The file holds the whole timeline as its owner left it; `timeline.json` is a copy
for readers, written afterwards. If the two differ, the newest claim is authoritative. A late
wrapper finds a higher number and writes nothing.

Before node 0 claims a number, it publishes a call with a fresh nonce (`.mwatch/join/call.json`).
Each other node answers it with a nonce of its own (`node-N.json`), and the claim lists the call and
the answers received. Node 0 ignores answers to an older call, and a node ignores a claim without
its own nonce, so old files cannot be mistaken for new ones. A call that a claim has already used is
not answered. If there is a controller, it collects the nonces and passes them to node 0: even if
the controller dies before it has answered every node, the claim still lists their nonces.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import uuid
from typing import Any, Callable, Mapping

from mwatch_trainer import contract
from mwatch_trainer.checkpoint import timeline as timelines
from mwatch_trainer.checkpoint.files import read_bounded
from mwatch_trainer.checkpoint.timeline import TimelineFile
from mwatch_trainer.processes.signals import FENCE, ControlRequest, RequestQueue

_CLAIMS_FOLDER = "claims"
KEPT = 16
_NAME = re.compile(r"attempt-([0-9]{1,15})\.json", re.ASCII)
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


class NumberTaken(Exception):
    """Another wrapper has claimed this number or a higher one."""


def _claims_folder(save: str) -> str:
    return os.path.join(save, timelines.FOLDER, _CLAIMS_FOLDER)


def highest(save: str) -> int:
    return max(_numbers(save), default=0)


def current(save: str) -> tuple[TimelineFile, int]:
    """Return the timeline and the highest number ever taken. Raises BrokenTimeline, OSError."""
    number = highest(save)
    claimed = _claimed(save, number) if number else None
    try:
        timeline = timelines.read(save) or TimelineFile()
    except timelines.BrokenTimeline:
        if claimed is None:
            raise
        timeline = claimed
    if claimed is not None and claimed.attempt > timeline.attempt:
        timeline = claimed
    return timeline, max(number, timeline.attempt)


def claim(save: str, number: int, seen: int, text: Callable[[TimelineFile], str]) -> TimelineFile:
    """Claim `number`; `seen` is the highest number that the choice was based on.

    `text` serializes the new timeline. Raises NumberTaken, BrokenTimeline, OSError.
    """
    timeline, top = current(save)
    if top > seen or top >= number:
        raise NumberTaken(f"attempt {top} has started since")
    content = text(timeline).encode()
    os.makedirs(_claims_folder(save), exist_ok=True)
    _make(save, number, content)
    top = highest(save)
    if top > number:
        raise NumberTaken(f"attempt {top} has started at the same time")
    contract.replace_file(timelines.path_of(save), content, is_synced=True)
    _prune(save, number)
    return timelines.parse(content)


def _make(save: str, number: int, content: bytes) -> None:
    path = os.path.join(_claims_folder(save), f"attempt-{number}.json")
    temporary = f"{path}.{os.getpid()}.tmp"
    _write(temporary, content, os.O_TRUNC)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise NumberTaken(f"attempt {number} has started elsewhere") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            _write(path, content, os.O_EXCL)
        except FileExistsError:
            raise NumberTaken(f"attempt {number} has started elsewhere") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _claimed(save: str, number: int) -> TimelineFile | None:
    path = os.path.join(_claims_folder(save), f"attempt-{number}.json")
    try:
        return timelines.parse(read_bounded(path, timelines.MAX_BYTES))
    except (OSError, timelines.BrokenTimeline):
        return None


def _numbers(save: str) -> tuple[int, ...]:
    try:
        names = os.listdir(_claims_folder(save))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = (_NAME.fullmatch(name) for name in names)
    return tuple(int(each.group(1)) for each in found if each)


def _prune(save: str, number: int) -> None:
    """Remove old claims; the newest are kept so that a suspended wrapper that resumes sees them."""
    with contextlib.suppress(OSError):
        for old in sorted(_numbers(save))[:-KEPT]:
            if old < number:
                os.unlink(os.path.join(_claims_folder(save), f"attempt-{old}.json"))


def newer_attempt(save: str | None, number: int) -> str | None:
    """Return a message if a newer attempt has started on the same checkpoint folder. Never raises.

    Files that cannot be read are ignored: a brief outage of a file system must not stop training.
    """
    if save is None:
        return None
    try:
        newest = highest(save)
    except OSError:
        newest = 0
    attempt = (contract.read_json(timelines.path_of(save)) or {}).get("attempt")
    if isinstance(attempt, int) and not isinstance(attempt, bool):
        newest = max(newest, attempt)
    if newest <= number:
        return None
    return f"attempt {newest} has started in {save}, and this is attempt {number}"


_FENCE_SECONDS = 2.0


class FenceWatch:
    """Looks for a newer attempt in a thread, to stop the child before its next save."""

    def __init__(self, save: str | None, number: int, requests: RequestQueue) -> None:
        self._save, self._number, self._requests = save, number, requests
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="mwatch-fence", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(_FENCE_SECONDS):
            why = newer_attempt(self._save, self._number)
            if why is not None and not self._is_over.is_set():
                self._requests.put(ControlRequest(FENCE, why, 0.0))
                return


_JOIN_FOLDER = "join"
_CALL = "call.json"


class FirstNode:
    """Node 0 in the handshake: publishes the call and collects the answers."""

    def __init__(self, save: str, nnodes: int) -> None:
        self._folder = os.path.join(save, timelines.FOLDER, _JOIN_FOLDER)
        self._others = range(1, nnodes)
        self.nonce = uuid.uuid4().hex

    def call(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        contract.write_json(os.path.join(self._folder, _CALL), {"call": self.nonce})

    def received(self) -> dict[str, str]:
        nonces = {}
        for node in self._others:
            answer = contract.read_json(_answer_path(self._folder, node)) or {}
            nonce = answer.get("word")
            if answer.get("call") == self.nonce and isinstance(nonce, str):
                nonces[str(node)] = nonce
        return nonces

    def missing(self) -> list[int]:
        received = self.received()
        return [node for node in self._others if str(node) not in received]


class OtherNode:
    """Any other node in the handshake: answers the call."""

    def __init__(self, save: str, node: int, nonce: str) -> None:
        self._save = save
        self._folder = os.path.join(save, timelines.FOLDER, _JOIN_FOLDER)
        self._node = node
        self._answered: str | None = None
        self._nonce = nonce

    def find_claim(self) -> Mapping[str, Any] | None:
        """Return the claim once it names this node's nonce. Writes nothing."""
        claim = self._claim() or {}
        return claim if self._names_us(claim) else None

    def poll(self) -> Mapping[str, Any] | None:
        """Like `find_claim`; while there is no such claim, answer a new call."""
        claim = self._claim()
        if claim is None:
            return None  # the claim may have used this call
        if self._names_us(claim):
            return claim
        call = (contract.read_json(os.path.join(self._folder, _CALL)) or {}).get("call")
        if isinstance(call, str) and call not in (self._answered, claim.get("call")):
            answer = {"call": call, "word": self._nonce}
            contract.write_json(_answer_path(self._folder, self._node), answer)
            self._answered = call
        return None

    def _claim(self) -> dict[str, Any] | None:
        """Return the claim; None if unreadable, empty if there is none."""
        path = timelines.path_of(self._save)
        document = contract.read_json(path)
        if document is None and os.path.lexists(path):
            return None
        claim = (document or {}).get("claim")
        return claim if isinstance(claim, dict) else {}

    def _names_us(self, claim: Mapping[str, Any]) -> bool:
        received = claim.get("heard")
        return isinstance(received, dict) and received.get(str(self._node)) == self._nonce


def _answer_path(folder: str, node: int) -> str:
    return os.path.join(folder, f"node-{node}.json")


def wait(
    is_done: Callable[[], bool],
    bound: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Poll until done; return False after `bound` seconds. OSErrors are retried."""
    until = monotonic() + bound
    pause = 0.05
    while True:
        try:
            if is_done():
                return True
        except OSError:
            pass  # a brief outage of a network file system
        if monotonic() >= until:
            return False
        sleep(min(pause, max(0.0, until - monotonic()) + 0.01))
        pause = min(2.0, pause * 1.5)
