# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What real sidecars answer for a pod that trains, one that waits, and one that is stopped.

Each is asked beside a volume that is written as wrapper and probes write it. The pods of the
fleet answer the same, with numbers and names of their own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from benchmarks.cluster.child import child
from benchmarks.cluster.training import Kind
from benchmarks.measure import ChildFailed
from benchmarks.serving import Running, running
from mwatch_trainer import contract

_TOKEN = "seeds-of-the-fleet"
_TRAIN_SECONDS = 13.0
"""Odd: the last step of a pod of `benchmarks.pod` is then in a collective."""
_REST_SECONDS = 16.0
"""Until each witness has seen it: CPU time is judged over 5 s, a GPU's activity over 10."""
_START_SECONDS = 30.0
_EVIDENCE_SECONDS = 20.0


class Seeds(NamedTuple):
    answers: dict[Kind, dict[str, Any]]
    """The whole answer of each, to somebody without a cursor."""
    bundle: bytes
    """The evidence of one that waits, as `.tgz`."""


def gather() -> Seeds:
    """In half a minute."""
    with ExitStack() as stack:
        sidecars = {kind: stack.enter_context(_sidecar(kind)) for kind in Kind}
        time.sleep(_TRAIN_SECONDS + _REST_SECONDS)
        answers = {kind: json.loads(one.get("/v1/snapshot")) for kind, one in sidecars.items()}
        return Seeds(answers, _evidence(sidecars[Kind.WAITING]))


@contextmanager
def _sidecar(kind: Kind) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        volume, token = Path(folder) / "volume", Path(folder) / "token"
        volume.mkdir()
        token.write_text(_TOKEN)
        pod = [sys.executable, "-m", "benchmarks.cluster.seed_pod", str(volume), kind.value]
        with child([*pod, f"{_TRAIN_SECONDS:g}"]):
            _wait_for(volume / contract.NODE_FOLDER / contract.NODE_GPUS)
            words = [
                sys.executable, "-m", "mwatch", "sidecar", "--dir", str(volume), "--name", "bench",
                "--pod", "pod-0", "--host", "127.0.0.1", "--port", "0",
                "--token-file", str(token),
            ]  # fmt: skip
            with running(words) as one:
                yield one


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise ChildFailed("the pod writes nothing")
        time.sleep(0.01)


def _evidence(one: Running) -> bytes:
    headers = {"Authorization": f"Bearer {_TOKEN}"}
    asked = json.dumps({"reason": "a seed", "wait_seconds": _EVIDENCE_SECONDS}).encode()
    url = f"{one.url}/v1/evidence"
    with urlopen(Request(url, asked, headers), timeout=60) as answer:
        id = json.load(answer)["id"]
    with urlopen(Request(f"{url}/{id}.tgz", headers=headers), timeout=60) as answer:
        bundle: bytes = answer.read()
        return bundle
