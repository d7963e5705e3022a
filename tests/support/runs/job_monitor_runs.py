# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job of several pods as its controller sees it, second by second: pods that train, stall, fall
silent or vanish, each polled at its own moment.

Pods' clocks are wrong by minutes, each by another amount: that must not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from mwatch.config import catalogue
from mwatch.fleet.cluster_view import DeletedPodTracker, PodSeen
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.fleet.visibility import Polled
from mwatch.model.decision import Decision
from mwatch.model.event import Iteration
from mwatch.model.kube.facts import KubeEvent, KubeFacts
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import Disruption, KubePod
from mwatch.model.observation import AttemptStart, Observed, Sign, SignSource, SignState
from mwatch.model.snapshot.pod import PodId, TrainerEnd, WrapperState
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, RankRow, SidecarView
from support.builders import kube
from support.builders.events import megatron_line, one

START = 1_800_000_000.0
PERIOD = 5.0
CATALOGUE = {entry.id: entry for entry in catalogue.load([])}
SOURCES = {"log": True, "probe": True, "processes": True, "gpus": True, "wrapper": True}
VIEW = SidecarView(1, "training", 1, None, None, None, None, False, "none", "")
UNREACHABLE = "Connection refused"


@dataclass
class TrainingPod:
    """One rank in one pod, whose clock is wrong by `skew` seconds."""

    name: str
    rank: int
    world: int
    skew: float
    uid: str = ""
    attempt: int = 1
    started_at: float = START
    step_seconds: float = 1.0
    first_iteration: int = 0
    stalls_at: float | None = None
    """From then on no iteration is finished."""
    stops_at: float | None = None
    """From then on the process is stopped: its probe writes no more."""
    answers: bool = True
    prints: bool = False
    has_probe: bool = True
    has_log: bool = True
    exit: TrainerEnd | None = None
    told: list[Observed] = field(default_factory=list)
    line: int = 0
    is_new: bool = True
    unwatched: str | None = None
    """Why it has no wrapper."""

    def iteration(self, now: float) -> int:
        until = min(now, self.stalls_at or now, self.stops_at or now)
        return self.first_iteration + max(0, int((until - self.started_at) / self.step_seconds))

    def risen_at(self, now: float) -> float:
        done = self.iteration(now) - self.first_iteration
        return self.started_at + done * self.step_seconds

    def say(self, at: float, what: Any) -> None:
        """An event, for the next answer."""
        self.told.append(Observed(at + self.skew, self.name, what))

    def print_lines(self, before: float, now: float) -> None:
        for number in range(self.iteration(before) + 1, self.iteration(now) + 1):
            self.line += 1
            line = one(megatron_line(number, stamp=None) + "\n", Iteration)
            losses = {"lm loss": 8.0 - 0.01 * number + 0.003 * (number * 7 % 5)}
            line = line._replace(line=self.line, losses=losses, elapsed_ms=1e3 * self.step_seconds)
            self.say(now, line)

    def snapshot(self, now: float, age: float = 0.4) -> PodSnapshot:
        looked = now - age
        written = min(looked, self.stops_at or looked)
        row = RankRow(
            self.rank, self.world, self.iteration(written), "compute", f"{int(written):x}",
            40 + self.rank, written + self.skew, self.risen_at(written) + self.skew,
        )  # fmt: skip
        state = SignState.STOPPED if self.stops_at and looked > self.stops_at else SignState.MOVING
        still = self.stalls_at is not None and looked > self.stalls_at + 3
        activity = SignState.FLAT if still else SignState.MOVING
        signs = (
            Sign(SignSource.PROCESS, state, self.rank, f"rank {self.rank}: {state}"),
            Sign(SignSource.GPU_ACTIVITY, activity, self.rank, "power"),
        )
        events, self.told = tuple(self.told), []
        at = looked + self.skew
        wrapper = WrapperState(
            self.attempt, "act", self.started_at + self.skew, 10, "h", self.rank, self.world, (),
            None, None, "/ckpt", self.exit, False,
        )  # fmt: skip
        is_new, self.is_new = self.is_new, False
        view = structs.replace(VIEW, unwatched=self.unwatched)
        return PodSnapshot(
            at=at, age=age, cursor="life.1", gap=is_new, drift=0.0,
            who=PodId("train", self.name, self.uid, "ns", "n1", "boot", "0", at, "act"), view=view,
            ranks=(row,) if self.has_probe else (),
            signs=() if self.unwatched else tuple(Observed(at, self.name, each) for each in signs),
            sources={**SOURCES, "probe": self.has_probe, "log": self.has_log},
            gpus=(), nccl=None, fabric=(), storage=None, findings=(), events=events, unread=0,
            wrapper=None if self.unwatched else wrapper,
        )  # fmt: skip


class Fleet:
    """Of one job: `run` lets the time pass."""

    def __init__(self, pods: int = 2, *, job: KubeJob | None = None, **each: Any) -> None:
        self.job = job or kube.pytorch_job(workers=pods - 1)
        self.now = START
        self.pods = [
            TrainingPod(f"train-{n}", n, pods, skew=300.0 * (n - 1), uid=f"uid-train-{n}", **each)
            for n in range(pods)
        ]
        self.pods[-1].prints = True
        self.kube: dict[str, KubePod] = {each.name: kube.pod(each.name) for each in self.pods}
        self.nodes: tuple[KubeNode, ...] | None = None
        self.watch = JobMonitor(self.job, CATALOGUE, now=START, has_record=True)
        self.events: tuple[KubeEvent, ...] = ()
        self._leavings = DeletedPodTracker(lambda: self.now)
        self._before: dict[str, PodSeen] = {}
        self.causes: list[str] = []
        self.detectors: set[str] = set()

    def replace(self, name: str, **change: Any) -> None:
        self.kube[name] = replace(self.kube[name], **change)

    def see(self) -> None:
        left = self._left().get(self.job.uid, ())
        facts = KubeFacts(self.now, self.job, self.job.name, tuple(self.kube.values()),
                          nodes=self.nodes, events=self.events, left=left)  # fmt: skip
        places = {pod.uid: 9401 for pod in self.kube.values()}
        self.watch.see(facts, places, 1.0)

    def _left(self) -> dict[str, tuple[KubePod, ...]]:
        """As the watch of the pods would tell of each change."""
        before = self._before
        self._before = {each.uid: PodSeen(each, 9401) for each in self.kube.values()}
        for uid in {**before, **self._before}:
            self._leavings.on_change(before.get(uid), self._before.get(uid))
        return self._leavings.by_job({self.job.uid: self.job.uid})

    def run(self, seconds: float) -> Fleet:
        for _ in range(round(seconds)):
            before, self.now = self.now, self.now + 1.0
            self.see()
            for place, pod in enumerate(self.pods):
                if pod.prints:
                    pod.print_lines(before, self.now)
                if pod.name in self.kube and int(self.now - START) % PERIOD == place % PERIOD:
                    self.poll(pod)
            said = self.watch.look(self.now)
            self.causes.append(said.decision.cause.value)
            self.detectors |= {each.detector for each in said.findings}
        return self

    def poll(self, pod: TrainingPod) -> None:
        uid = self.kube[pod.name].uid
        if not pod.answers:
            self.watch.polled(Polled(uid, self.now, None, UNREACHABLE))
            return
        self.watch.polled(Polled(uid, self.now, pod.snapshot(self.now), port=9401))

    @property
    def cause(self) -> str:
        return self.causes[-1]

    @property
    def findings(self) -> dict[str, str]:
        said = self.watch.assessment
        return {} if said is None else {each.detector: each.summary for each in said.findings}

    @property
    def decision(self) -> Decision:
        assert self.watch.assessment is not None
        return self.watch.assessment.decision

    def take_away(self, name: str, *, by: str = "", seconds: int = 3) -> None:
        """Somebody deletes that pod, and its gang stands still; `by`: what the cluster says."""
        why = Disruption(by, "so it is", self.now) if by else None
        self.replace(name, deleting_at=self.now + 30, grace_seconds=30.0, disruption=why)
        for pod in self.pods:
            pod.stalls_at = self.now
        self.run(seconds)
        del self.kube[name]

    def fill(self, name: str, uid: str = "another") -> None:
        """The job's controller makes another pod, whose wrapper waits for its attempt."""
        self.kube[name] = replace(kube.pod(name), uid=uid)
        pod = next(each for each in self.pods if each.name == name)
        pod.uid, pod.answers = uid, False

    def restart(
        self, attempt: int, pods: Sequence[TrainingPod] = (), resume_from: int = 50
    ) -> None:
        """All, or these, begin the attempt."""
        for pod in pods or self.pods:
            pod.first_iteration = resume_from
            pod.attempt, pod.started_at = attempt, self.now
            pod.stalls_at = pod.stops_at = None
            pod.say(self.now, AttemptStart(attempt, resume_from, None))
