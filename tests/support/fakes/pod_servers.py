# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's sidecar as whoever polls it sees it: the real page on the real server, at an address of
the loopback network. What it tells of is up to the test."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mwatch.export.http.server import Page, Request, Server
from mwatch.model.job import SignSeen
from mwatch.model.observation import AttemptStart, Beat, Observed
from mwatch.model.snapshot.pod import PodId, WrapperState
from mwatch.model.snapshot.snapshot import SourceState
from mwatch.sidecar.server import Evaluated, SnapshotPage
from mwatch.sources.probe import RankReading
from support.builders.snapshot import busy_snapshot


class PodServer:
    def __init__(
        self,
        name: str = "train-0",
        *,
        uid: str = "uid-0",
        namespace: str = "ns",
        address: str = "127.0.0.1",
        port: int = 0,
        attempt: int = 1,
        rank: int = 0,
        sources: Mapping[str, bool] | None = None,
    ) -> None:
        self.name, self.rank, self.attempt = name, rank, attempt
        self.requests: list[str] = []
        self.follows = True
        """False: as sidecars of older releases."""
        self.started_at = time.time() - 5.0
        self._namespace = namespace
        self.be(uid)
        up = sources or {"log": True, "probe": True, "processes": True}
        self._sources = {each: SourceState(is_up, time.time()) for each, is_up in up.items()}
        self._server: Server | None = None
        self.address, self.port = address, port
        self.listen()

    def be(self, uid: str) -> None:
        """Of the pod with that UID, and anew."""
        who = PodId(
            "train", self.name, uid, self._namespace, "n1", "b", "0", self.started_at, "act"
        )
        self.page = SnapshotPage(who, f"life{self.rank}")
        self.tell(AttemptStart(self.attempt, None, None), at=self.started_at)

    def listen(self) -> None:
        self._server = Server({"/v1/snapshot": self._answer}, port=self.port, host=self.address)
        self.port = self._server.port

    def tell(self, what: Any, at: float | None = None) -> None:
        self.page.observe(Observed(time.time() if at is None else at, self.name, what))

    def look(self, iteration: int, signs: Sequence[SignSeen] = ()) -> None:
        """As its loop does once a second."""
        now = time.time()
        beat = Beat(self.rank, 2, iteration, "compute", f"{iteration:08x}", 40, None)
        snapshot = replace(busy_snapshot(), at=now, sources=self._sources, findings=())
        wrapper = WrapperState(
            self.attempt, "act", self.started_at, 10, "h", self.rank, 2, (), None, None, "/ckpt",
            None, False,
        )  # fmt: skip
        looked = Evaluated(
            snapshot, time.monotonic(), 0.0, (RankReading(beat, 0.1, True),), now, signs,
            {self.rank: now - 0.2}, 1.0,
        )  # fmt: skip
        self.page.update(looked, wrapper, None)

    def hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    close = hang_up

    def _answer(self, request: Request) -> Page:
        self.requests.append(request.query)
        if not self.follows:
            request = request._replace(query=request.query.replace("follow=", "unknown="))
        return self.page.page(request)
