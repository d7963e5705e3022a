# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What pods of a job tell, for tests: logs as a kubelet gives them, snapshots of a real page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from mwatch import json_codec
from mwatch.config import catalogue
from mwatch.diagnose.pod_reports import PodReport
from mwatch.kube.pod_pages import PodLog
from mwatch.model.job import SignSeen
from mwatch.model.observation import Beat, Observed
from mwatch.model.snapshot.pod import PodFacts, PodId, WrapperState
from mwatch.model.snapshot.snapshot_wire import from_wire
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader, in_order
from mwatch.sidecar.server import Evaluated, SnapshotPage
from mwatch.sources.probe import RankReading
from support.builders.kube import pod as make_pod
from support.builders.snapshot import busy_snapshot

BEGAN = 1_780_000_000.0
RUNNING = {"name": "pytorch", "restartCount": 0, "state": {"running": {}}}


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def as_printed(lines: Iterable[tuple[float, str]]) -> bytes:
    """By a kubelet, with the time of each line."""
    return "".join(f"{stamp(BEGAN + at)} {line}\n" for at, line in lines).encode()


def iteration(number: int, total: int = 1000, loss: float | None = None) -> str:
    """`loss` None: one that falls, as it should."""
    value = 6.0 - 0.01 * (number % 300) if loss is None else loss
    return (
        f" [2026-05-28 20:26:{number % 60:02d}] iteration {number:8d}/{total:8d} | "
        f"consumed samples: {number * 8:12d} | elapsed time per iteration (ms): 1000.0 | "
        f"learning rate: 6.000000E-05 | global batch size:     8 | lm loss: {value:.6E} | "
        "loss scale: 1.0 | grad norm: 0.791 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def block(**values: object) -> list[str]:
    rows = [f"  {name} {'.' * 30} {value}" for name, value in values.items()]
    edge = "------------------------"
    return [f"{edge} arguments {edge}", *rows, f"{edge} end of arguments {edge}"]


USUAL = {
    "log_interval": 1, "save": "/ckpt", "load": "/ckpt", "world_size": 2, "save_interval": 10,
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2, "train_iters": 1000,
    "num_layers": 4,
}  # fmt: skip


def log(
    name: str, lines: Sequence[tuple[float, str]], *, is_previous: bool = False, cut_at: int = 0
) -> PodLog:
    """`cut_at`: so many lines are its beginning, and the rest its end."""
    if not cut_at:
        return PodLog(name, "pytorch", is_previous, as_printed(lines))
    head, tail = as_printed(lines[:cut_at]), as_printed(lines[cut_at:])
    return PodLog(name, "pytorch", is_previous, head, tail)


def words(name: str, *logs: PodLog, ended: tuple[float, int, str] | None = None) -> PodReport:
    """`ended`: when its container has, with which code and why."""
    state: dict[str, Any] = dict(RUNNING)
    if ended is not None:
        at, code, reason = ended
        over = {"exitCode": code, "reason": reason, "finishedAt": stamp(BEGAN + at)}
        state = {"name": "pytorch", "restartCount": 0, "state": {"terminated": over}}
    made = make_pod(name, status={"containerStatuses": [state]})
    return PodReport(made, "pytorch", logs=logs)


def events_of(lines: Iterable[tuple[float, str]]) -> list[Observed]:
    """As a sidecar reads them, each at its moment."""
    timed = list(lines)
    reader = Reader(Grammar(catalogue.load(()), None), "trainer.log")
    text = "".join(f"{line}\n" for _, line in timed).encode()
    found = [*in_order(reader.feed(text)), *in_order(reader.settle())]
    return [Observed(timed[each.line - 1][0], "", each) for each in found]


def answering(
    name: str,
    *,
    events: Iterable[Observed] = (),
    beats: Sequence[tuple[Beat, float, float]] = (),
    signs: Sequence[SignSeen] = (),
    wrapper: WrapperState | None = None,
    pod: PodFacts | None = None,
    at: float = 0.0,
) -> PodReport:
    """A pod whose sidecar answers. `beats`: with the moment of the record, and of the last rise."""
    who = PodId("gpt", name, f"uid-{name}", "ns", "n1", "boot", "0.1.0", BEGAN, "observe")
    page = SnapshotPage(who, "life", clock=lambda: 0.0)
    for each in events:
        page.observe(each._replace(at=BEGAN + each.at, stream=name))
    now = BEGAN + at
    snapshot = busy_snapshot().__class__(
        **{**_fields(busy_snapshot()), "at": now, "findings": (), "decision": None}
    )
    readings = tuple(RankReading(beat, at - wrote, True) for beat, wrote, _ in beats)
    risen = {beat.rank: BEGAN + rose for beat, _, rose in beats}
    page.update(Evaluated(snapshot, 0.0, 0.0, readings, now, signs, risen), wrapper, pod)
    raw = json_codec.decode(page.body())
    made = make_pod(name, status={"containerStatuses": [RUNNING]})
    return PodReport(made, "pytorch", from_wire(raw), now, raw=raw)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
