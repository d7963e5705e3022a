# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Network, mounts and processes of the cluster's own, and the way in for the tests.

Whatever happens to the tests, nothing is left: see `cluster.keeper` and `cluster.init`. Needs
root.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NEW_NETWORK = 0x40000000
_START_SECONDS = 90.0
_END_SECONDS = 120.0
_POLL_SECONDS = 0.1
_RESTARTS = 2
_STARTING_SECONDS = 60.0
"""Who dies so soon was still starting: it is started again."""
restarted: list[str] = []
"""One line for each part that was started again in this process."""


class ClusterBroken(RuntimeError):
    """A part of the cluster did not come up, or died; the message has its last words."""


class Namespaces:
    def __init__(self, folder: Path) -> None:
        """`folder` is gone when they are."""
        self.folder = folder
        self._orders: dict[str, str] = {}
        self._restarts: Counter[str] = Counter()
        tests = str(Path(__file__).parents[1])
        self._keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "cluster.keeper", str(folder)],
            env={**os.environ, "PYTHONPATH": tests},
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            self.first = self._first_process()
        except BaseException:
            self.close()
            raise

    def start(self, name: str, argv: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """In the background; what it prints goes to `NAME.log`."""
        order = {"name": name, "argv": [*map(str, argv)], "environment": dict(environment)}
        self._orders[name] = json.dumps(order)
        self._send(name)

    def wait_for(self, what: str, is_there: Callable[[], bool], seconds: float) -> None:
        """A part that dies while it starts is started again, twice at most. ClusterBroken as soon
        as a part has died for good, or when the time is over."""
        until = time.monotonic() + seconds
        while not is_there():
            if end := self._unanswered_end():
                if not self._is_started_again(end):
                    name = end["name"]
                    raise ClusterBroken(f"{name} died while waiting for {what}: {self.tail(name)}")
                until = time.monotonic() + seconds
            if time.monotonic() > until:
                raise ClusterBroken(f"no {what} after {seconds:.0f} s; logs in {self.folder}")
            time.sleep(_POLL_SECONDS)

    def dead(self) -> str | None:
        """The name of a part that has ended with an error, and was not started again."""
        end = self._unanswered_end()
        return None if end is None else str(end["name"])

    def _send(self, name: str) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(self._orders[name] + "\n")
        self._keeper.stdin.flush()

    def _unanswered_end(self) -> dict[str, Any] | None:
        try:
            lines = (self.folder / "ends.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return None
        answered = Counter(self._restarts)
        for end in map(json.loads, lines):
            if end["code"]:
                answered[end["name"]] -= 1
                if answered[end["name"]] < 0:
                    return dict(end)
        return None

    def _is_started_again(self, end: Mapping[str, Any]) -> bool:
        name = end["name"]
        if self._restarts[name] == _RESTARTS or end["seconds"] > _STARTING_SECONDS:
            return False
        self._restarts[name] += 1
        last = (self.tail(name).strip().splitlines() or ["it printed nothing"])[-1]
        count = f"{self._restarts[name]} of {_RESTARTS}"
        restarted.append(f"{name} died while starting, started again ({count}): {last[:300]}")
        self._send(name)
        return True

    def tail(self, name: str) -> str:
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return text[-1500:]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and all that it starts, in the network of the cluster."""
        with open("/proc/self/ns/net", "rb") as home, open(self._network, "rb") as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def close(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait(10)

    @property
    def _network(self) -> str:
        return f"/proc/{self.first}/ns/net"

    def _first_process(self) -> int:
        """The keeper starts `unshare`, and that forks it: only a child is in the new namespace."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self._keeper.poll() is None:
            for unshare in _children(self._keeper.pid):
                for first in _children(unshare):
                    return first
            time.sleep(0.01)
        raise ClusterBroken("no namespaces of our own could be made: that needs root")


def is_listening(port: int) -> bool:
    """Whether somebody does, on the loopback address of the network that this thread is in."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0):
            return True
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _enter(file: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(file, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
