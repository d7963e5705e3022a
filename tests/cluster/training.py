# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job under way: what its pods print, what lies in its folder, and ways to hurt it.

All of it by Kubernetes' own clients, and nothing of it by mwatch: who judges does not ask the
judged.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from bisect import bisect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from cluster.api import Api
from cluster.kubectl import Kubectl, KubectlFailed
from cluster.training_job import SAVE
from mwatch.manifests.parts import TOKEN_FILE

_ITERATION = re.compile(r"\[(\S+ \S+)\] iteration +(\d+)/ *\d+ \|")
_BEGUN = re.compile(r"\[before the start of training step\] datetime: (\S+ \S+)")
_FOLDER = re.compile(r"iter_(\d{7})$")
_RANK = "^[^ ]+ (-u )?-m mwatch_gpt"
_TRACKER = "latest_checkpointed_iteration.txt"
_POLL_SECONDS = 0.5
_NOT_YET = (KubectlFailed, LookupError, StopIteration, ValueError, subprocess.TimeoutExpired)
"""Pods come and go, and an answer of a busy node may be cut off."""
SECONDS = 300.0
"""Enough for a busy machine; when all is well nobody waits so long."""
REST_SECONDS = 3.0
"""Whoever has done nothing for so long does nothing: on a busy machine a step takes a second."""
T = TypeVar("T")
READER = "reader"
LEDGER = "mwatch-ledger"
CONTROLLER = "mwatch-controller"


class File(NamedTuple):
    path: str
    size: int
    written_at: int


class Stopped(NamedTuple):
    iteration: int
    """The last that was printed."""
    checkpoint: int
    """The newest that is whole, by the trainer's own word."""


def at_rest(look: Callable[[], T]) -> T:
    """What it gives when that has been the same for a while."""
    seen, since = look(), time.monotonic()
    until = since + SECONDS
    while time.monotonic() < since + REST_SECONDS:
        assert time.monotonic() < until, f"it does not come to rest: {seen}"
        time.sleep(_POLL_SECONDS)
        if (now := look()) != seen:
            seen, since = now, time.monotonic()
    return seen


class Training:
    def __init__(self, cluster: Kubectl, namespace: str, kind: str, name: str) -> None:
        self._cluster = cluster
        self._api = Api(cluster.kubeconfig, namespace)
        self.namespace = namespace
        self.kind = kind
        self.name = name

    def kubectl(self, *words: str, seconds: float = 120.0) -> str:
        return self._cluster("-n", self.namespace, *words, seconds=seconds)

    def object(self) -> dict[str, Any]:
        return dict(self._cluster.get(self.kind, self.name, "-n", self.namespace))

    def pods(self) -> dict[str, str]:
        """UIDs by name, of those that are not about to go."""
        items = self._api.pods()
        mine = [each for each in items if each["metadata"]["name"].startswith(f"{self.name}-")]
        alive = [each for each in mine if "deletionTimestamp" not in each["metadata"]]
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in alive}

    def pod(self, part: str) -> str:
        """The one whose name holds it: `master`, `worker`."""
        return next(each for each in sorted(self.pods()) if part in each)

    def log(self, pod: str, container: str = "pytorch") -> str:
        return self._api.log(pod, container, 6000)

    def runs(self) -> list[list[int]]:
        """The iterations that were printed, by attempt: rank 0 says when one begins to train, the
        last rank prints its steps. Numbers alone do not tell: one that was stopped right after a
        save is gone on with at the next."""
        logs = [self.log(pod) for pod in self.pods()]
        begun = sorted(at for text in logs for at in _BEGUN.findall(text))
        found: dict[int, list[int]] = {}
        for at, number in sorted(step for text in logs for step in _ITERATION.findall(text)):
            found.setdefault(bisect(begun, at), []).append(int(number))
        return [found[place] for place in sorted(found)]

    def iteration(self) -> int:
        """The newest; 0 where none was printed yet."""
        runs = self.runs()
        return runs[-1][-1] if runs else 0

    def begun(self) -> int:
        """The first iteration of the newest process."""
        return self.runs()[-1][0]

    def resumes(self, checkpoint: int, past: int) -> None:
        """Waits until a new process has begun behind that checkpoint and gone past `past`."""

        def does() -> bool:
            run = self.runs()[-1]
            return run[0] == checkpoint + 1 and run[-1] > past

        self.wait(does, f"training from {checkpoint + 1} to past {past}", SECONDS)

    def wait_past(self, iteration: int, seconds: float = SECONDS) -> int:
        self.wait(lambda: self.iteration() > iteration, f"iteration past {iteration}", seconds)
        return self.iteration()

    def trains_well(self) -> tuple[dict[str, str], int]:
        """Its pods and its attempt, once it has saved and goes on."""
        self.wait(lambda: bool(self.timeline()), "an attempt", SECONDS)
        self.wait_for_checkpoint(self.resumed())
        self.wait_past(self.iteration())
        return self.pods(), int(self.timeline()["attempt"])

    def wait_for_token(self) -> None:
        """Without it no sidecar hands out evidence; the kubelet mounts it up to a minute after the
        controller has made it."""

        def is_there() -> bool:
            for pod in self.pods():
                self.kubectl(
                    "exec", pod, "-c", "pytorch", "--", "sh", "-c", f"test -s {TOKEN_FILE}"
                )
            return True

        self.wait(is_there, "the token in every pod", SECONDS)

    def stop(self, part: str) -> Stopped:
        """SIGSTOP to the rank of that pod; how far the job has come, when it has come to rest.

        Just after a save: one that is under way may be completed when the pod is told to end.
        """
        saved = self._reached().checkpoint
        self.wait(lambda: self._reached().checkpoint > saved, "the next save", SECONDS)
        self.signal(self.pod(part), "STOP")
        return at_rest(self._reached)

    def _reached(self) -> Stopped:
        return Stopped(self.iteration(), int(self.look(f"cat {SAVE}/{self.name}/{_TRACKER}")))

    def wait_for_attempt(self, number: int, *, first: bool = False) -> None:
        """In the folder of checkpoints, where its owner has written it."""
        seconds = 2 * SECONDS if first else SECONDS

        def is_there() -> bool:
            return int(self.timeline().get("attempt", 0)) >= number

        self.wait(is_there, f"attempt {number}", seconds)
        attempts = self.timeline()["attempts"]
        numbers = [each["number"] for each in attempts]
        assert numbers == list(range(1, number + 1)), f"one is left out or comes twice: {attempts}"

    def resumed(self) -> int:
        """From which iteration the newest attempt has resumed; 0: it has begun anew."""
        attempts = self.timeline().get("attempts") or [{}]
        return int(attempts[-1].get("resumed_from") or 0)

    def restarts(self) -> dict[str, int]:
        """Of containers, by pod."""
        return {
            pod: sum(each["restartCount"] for each in self._statuses(pod)) for pod in self.pods()
        }

    def containers(self, pod: str) -> list[str]:
        """Their names at containerd."""
        return [each["containerID"].rpartition("/")[2] for each in self._statuses(pod)]

    def _statuses(self, pod: str) -> list[dict[str, Any]]:
        status = self._cluster.get("pod", pod, "-n", self.namespace)["status"]
        return [*status["containerStatuses"], *status.get("initContainerStatuses", ())]

    def checkpoints(self) -> list[int]:
        names = self.look(f"ls {SAVE}/{self.name}").split()
        return sorted(int(found[1]) for name in names if (found := _FOLDER.match(name)))

    def wait_for_checkpoint(self, after: int, seconds: float = SECONDS) -> int:
        def is_there() -> bool:
            return any(each > after for each in self.checkpoints())

        self.wait(is_there, f"a checkpoint after {after}", seconds)
        return self.checkpoints()[-1]

    def timeline(self) -> dict[str, Any]:
        text = self.look(f"cat {SAVE}/{self.name}/.mwatch/timeline.json")
        return dict(json.loads(text)) if text.strip() else {}

    def files(self) -> set[File]:
        """All that lies in the folder of checkpoints."""
        listed = f"find {SAVE}/{self.name} -type f -exec stat -c '%s %Y %n' {{}} +"
        rows = [line.split(" ", 2) for line in self.look(listed).splitlines()]
        return {File(path, int(size), int(at)) for size, at, path in rows}

    def settled_files(self) -> set[File]:
        """When nobody writes any more."""
        return at_rest(self.files)

    def look(self, script: str) -> str:
        """By a pod that has the claim, read-only."""
        return self._api.run(READER, script)

    def signal(self, pod: str, name: str) -> None:
        """To the rank in that pod, and not to its launcher."""
        script = f"kill -{name} $(pgrep -f -- '{_RANK}')"
        self.kubectl("exec", pod, "-c", "pytorch", "--", "sh", "-c", script)

    def events(self) -> list[str]:
        """Reasons of those on the job, oldest first."""
        return [reason for reason, _ in self.event_texts()]

    def ledger(self) -> str:
        """What the controller has written down about it, as JSON; empty: nothing."""
        words = ("get", "configmap", LEDGER, "-n", self.namespace, "-o", "json")
        answer = self._cluster(*words, "--ignore-not-found")  # empty: there was no act yet
        data = json.loads(answer).get("data", {}) if answer.strip() else {}
        mine = (str(text) for key, text in data.items() if key.endswith(f".{self.name}"))
        return next(mine, "")

    def acts(self) -> list[dict[str, Any]]:
        """What was done to it by that; the newest last."""
        text = self.ledger()
        return list(json.loads(text)["acts"]) if text else []

    def event_texts(self) -> list[tuple[str, str]]:
        items = self._cluster.get("events", "-n", self.namespace)["items"]
        mine = [
            each
            for each in items
            if each["involvedObject"].get("name") == self.name
            and each["involvedObject"].get("kind", "").lower() == self.kind
        ]
        return [(each["reason"], each.get("message", "")) for each in mine]

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            try:
                if is_so():
                    return
            except _NOT_YET:
                pass
            assert time.monotonic() < until, f"not within {seconds:.0f} s: {what}\n{self.story()}"
            time.sleep(_POLL_SECONDS)

    def story(self) -> str:
        """For who reads why a test failed."""
        try:
            return self._story()
        except _NOT_YET as error:
            return f"what happened cannot be read: {error}"

    def _story(self) -> str:
        parts: list[Sequence[str]] = [[str(self.pods()), str(self.checkpoints()[-5:])]]
        for pod in sorted(self.pods()):
            parts.append([f"--- {pod}", *self.log(pod).splitlines()[-8:]])
            parts.append([f"--- {pod} mwatch", *self.log(pod, "mwatch").splitlines()[-8:]])
        parts.append([f"{reason}: {text}" for reason, text in self.event_texts()[-12:]])
        words = ("logs", f"deployment/{CONTROLLER}", "--tail=40")
        said = self._cluster.answer("-n", self.namespace, *words) or "no log"
        parts.append(["--- controller", *said.splitlines()])
        return "\n".join(line for part in parts for line in part)
