# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`/v1/snapshot` of one pod of the fleet: the sidecar's own page, fed with the seed's values.

Cursors, parts that change seldom and the ring of events are the sidecar's own code. What is new
at each look is not gathered from a volume but is the seed's answer with this pod's names, ranks
and times put in, which costs microseconds: so one process can be two thousand sidecars.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.cluster.training import RANKS, Kind, Training
from mwatch import json_codec
from mwatch.model.event import Iteration
from mwatch.model.job import Job
from mwatch.model.observation import Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.snapshot.observed_wire import from_wire
from mwatch.model.snapshot.pod import PodId, WrapperState
from mwatch.model.snapshot.snapshot import Inputs, Snapshot, take
from mwatch.model.snapshot.snapshot_wire import STEADY
from mwatch.sidecar.server import Evaluated, SnapshotPage

CHECKPOINT_EVERY = 100
FIRST_ITERATION = 1000
"""Where the job stands when the fleet begins: it has checkpoints."""
_OURS = frozenset({"version", "age", "cursor", "gap", "events", "who", "wrapper", "stored", "pod"})
"""Members that the page makes itself."""
_AT, _BEAT, _PROGRESS, _DONE = b'"@at"', b'"@beat"', b'"@progress"', b'"@done"'
_STACK = b"@stack"
_RANK = re.compile(r"\brank (\d+)")


class Place(NamedTuple):
    """One pod, as the API server has it."""

    number: int
    """In the job: its node rank."""
    name: str
    uid: str
    namespace: str
    node: str
    address: str


class Fleet(NamedTuple):
    """What all pods of the job share."""

    run: str
    pods: int
    attempt: int
    training: Training
    seeds: Mapping[Kind, Mapping[str, Any]]


class PodPage(SnapshotPage):
    def __init__(self, place: Place, fleet: Fleet) -> None:
        began = fleet.training.began
        who = PodId(
            fleet.run, place.name, place.uid, place.namespace, place.node, place.node, "bench",
            began, "act",
        )  # fmt: skip
        super().__init__(who, f"{place.uid.replace('-', '')[:12]}{fleet.attempt}")
        self._place, self._fleet = place, fleet
        self._templates: dict[Kind, bytes] = {}
        self._steady_templates: dict[Kind, bytes] = {}
        self._offset = place.number * 0.618 % 1.0
        """Sidecars look once a second, each at its own moment."""
        self._wrapper = _wrapper(fleet, place)
        self._at = began
        self._printed = 0
        for observed in _start(fleet, place):
            self.observe(observed)

    def answer(self, after: str, now: float) -> bytes:
        """`now`: of the wall clock."""
        self._at = at = now - (now + self._offset) % 1.0
        self._print(at)
        monotonic = time.monotonic() - (now - at)
        self.update(Evaluated(_NOTHING, monotonic, 0.0, (), at, ()), self._wrapper, None)
        return self.body(after)

    @property
    def name(self) -> str:
        return self._place.name

    def kind(self, now: float) -> Kind:
        return self._fleet.training.kind(self._place.number, now)

    def line(self, cursor: str, now: float, *, is_steady: bool) -> tuple[bytes, str]:
        """Of a stream, and the cursor after it."""
        if is_steady and self._place.number != self._fleet.pods - 1:
            self._at = now - (now + self._offset) % 1.0
            head = b'%b"age":%.3f,"cursor":"%b",' % (STEADY, now - self._at, cursor.encode())
            return head + self._filled(self._steady_template()) + b"\n", cursor
        self.answer("", now)
        body, cursor, _ = self.whole(cursor)
        return body + b"\n", cursor

    def _steady_template(self) -> bytes:
        kind = self._fleet.training.kind(self._place.number, self._at)
        if kind not in self._steady_templates:
            body = template_members(self._fleet, self._place, kind)
            kept = {"at": "@at", "iteration": "@done", "progress_at": "@progress"}
            self._steady_templates[kind] = json_codec.encode({**kept, "beats": body["beats"]})[1:]
        return self._steady_templates[kind]

    def _print(self, at: float) -> None:
        """Iteration lines are the last rank's."""
        fleet = self._fleet
        if self._place.number != fleet.pods - 1:
            return
        done = fleet.training.iteration(at)
        for iteration in range(self._printed + 1, done + 1):
            self.observe(_line(fleet, self._place.name, iteration))
        self._printed = max(done, self._printed)

    def _fast(self, looked: Evaluated) -> bytes:
        place, training = self._place, self._fleet.training
        kind = training.kind(place.number, self._at)
        if kind not in self._templates:
            self._templates[kind] = template(self._fleet, place, kind)
        return self._filled(self._templates[kind]) + b',"who":' + self._who

    def _filled(self, body: bytes) -> bytes:
        place, training = self._place, self._fleet.training
        done = training.iteration(self._at)
        beat = self._at - self._offset
        if training.stop is not None and training.kind(place.number, self._at) is Kind.STOPPED:
            beat = training.stop.at
        for mark, value in (
            (_AT, b"%.3f" % self._at),
            (_BEAT, b"%.3f" % beat),
            (_PROGRESS, b"%.3f" % training.ended_at(done)),
            (_DONE, b"%d" % (FIRST_ITERATION + done)),
            (_STACK, b"%08x" % done),
        ):
            body = body.replace(mark, value)
        return body


_NOTHING: Snapshot = take(Job("fleet", {}), Inputs(), at=0.0)


def template(fleet: Fleet, place: Place, kind: Kind) -> bytes:
    return b"," + json_codec.encode(template_members(fleet, place, kind))[1:-1]


def template_members(fleet: Fleet, place: Place, kind: Kind) -> dict[str, Any]:
    """The members of the seed's answer that are new at each look, with marks for what moves."""
    seed = fleet.seeds[kind]
    first = place.number * RANKS
    world = fleet.pods * RANKS
    body = {name: value for name, value in seed.items() if name not in _OURS}
    body["at"] = "@at"
    body["view"] = {
        **seed["view"], "attempt": fleet.attempt, "iteration": "@done", "world_size": world,
        "progress_at": "@progress",
    }  # fmt: skip
    body["beats"] = [
        [first + rank, world, "@done", phase, "@stack", pid, "@beat", *("@progress" for _ in more)]
        for rank, _, _, phase, _, pid, _, *more in seed["beats"]
    ]
    body["signs"] = [
        [source, state, None if rank is None else first + rank, _renamed(text, first), "@at"]
        for source, state, rank, text, _ in seed["signs"]
    ]
    body["gpus"] = [
        {**gpu, "rank": first + gpu["rank"], "uuid": f"GPU-{first + gpu['rank']:08d}"}
        for gpu in seed["gpus"]
    ]
    # The seed's loss never changes, which its sidecar says: the fleet's does.
    peace = kind is Kind.MOVING
    body["findings"] = [] if peace else [_moved(each, place) for each in seed["findings"]]
    return body


def _moved(finding: Mapping[str, Any], place: Place) -> dict[str, Any]:
    moved = {**finding, "since_time": "@progress", "since_iteration": "@done"}
    if culprit := finding.get("culprit"):
        rank = place.number * RANKS + culprit["rank"]
        moved["culprit"] = {**culprit, "rank": rank, "pod": place.name}
    return moved


def _renamed(text: str, first: int) -> str:
    return _RANK.sub(lambda found: f"rank {first + int(found[1])}", text)


def _start(fleet: Fleet, place: Place) -> Iterator[Observed]:
    """The attempt that begins, the sources that are seen, and the checkpoint folder."""
    for record in fleet.seeds[Kind.MOVING]["events"]:
        if "seen" in record:
            observed = from_wire(record, place.name)
            yield observed._replace(at=fleet.training.began)
    checkpoints = tuple(
        StoredCheckpoint(iteration, "complete", None, 10**12, fleet.training.began - 60)
        for iteration in range(CHECKPOINT_EVERY, FIRST_ITERATION + 1, CHECKPOINT_EVERY)
    )
    yield Observed(fleet.training.began, place.name, StoredCheckpoints("/data/run", checkpoints))


def _line(fleet: Fleet, stream: str, iteration: int) -> Observed:
    seed = next(each for each in fleet.seeds[Kind.MOVING]["events"] if "event" in each)
    event = from_wire(seed, stream).what
    assert isinstance(event, Iteration)
    at, number = fleet.training.ended_at(iteration), FIRST_ITERATION + iteration
    moved = event._replace(
        iteration=number,
        consumed_samples=number * 512,
        timestamp=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)),
        losses={"lm loss": 3.0 + 0.01 * (iteration * 7 % 13)},
        first_of_process=iteration == 1,
        line=iteration,
    )
    return Observed(at, stream, moved)


def _wrapper(fleet: Fleet, place: Place) -> WrapperState:
    known = fleet.seeds[Kind.MOVING]["wrapper"]
    return WrapperState(
        attempt=fleet.attempt,
        mode="act",
        started_at=fleet.training.began,
        pid=known["pid"],
        host=place.name,
        node_rank=place.number,
        nnodes=fleet.pods,
        changes=(),
        resume_from=None,
        resume_reason=None,
        save="/data/run",
        exit=None,
        is_final=False,
        argv=("torchrun", "pretrain_gpt.py"),
    )
