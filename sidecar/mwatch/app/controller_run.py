# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A controller from its start to its end: until a signal, or for one look at everything."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from mwatch.app.asked_to_end import asked_to_end
from mwatch.app.clock import Clock
from mwatch.app.controller import TICK_SECONDS, Controller
from mwatch.app.controller_hands import HandsLike, NoHands
from mwatch.app.controller_settings import ControllerSettings
from mwatch.app.fleet_settings import FleetSettings
from mwatch.app.fleet_settings import load as load_fleet
from mwatch.app.hands import Hands
from mwatch.errors import MwatchError
from mwatch.kube.access import Access
from mwatch.kube.connect import connect
from mwatch.kube.events import Events
from mwatch.kube.lease import Lease
from mwatch_trainer.scrub import scrub_text

clean = scrub_text
_ONCE_SECONDS = 30.0
_SWITCH_SECONDS = 0.001
_HEALTHY = frozenset({"healthy", "finished"})


def run(settings: ControllerSettings, say: Callable[[str], None]) -> int:
    """Until a signal; MwatchError for what a person gave and cannot be used."""
    _settle()
    with asked_to_end() as asked, ExitStack() as stack:
        controller = make(settings, say)
        stack.callback(controller.access.close)
        stack.callback(controller.close)
        controller.start()
        while not asked.is_set():
            began = time.monotonic()
            controller.turn()
            asked.wait(max(0.0, TICK_SECONDS - (time.monotonic() - began)))
    return 0


def once(settings: ControllerSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """One look at all jobs; nothing is acted on. MwatchError where the cluster cannot be read."""
    with ExitStack() as stack:
        controller = make(settings, say, has_hands=False)
        stack.callback(controller.access.close)
        for part in (controller.fleet, controller.poll, controller.policies):
            stack.callback(part.close)
            part.start()
        until = time.monotonic() + _ONCE_SECONDS
        while not controller.fleet.is_ready:
            if time.monotonic() > until:
                problem = controller.fleet.problem or "the API server does not answer in time"
                raise MwatchError(problem)
            time.sleep(0.05)
        enough = time.monotonic() + settings.poll_seconds + 3.0
        while True:
            controller.turn()
            if time.monotonic() > min(enough, until) or _are_all_asked(controller):
                break
            time.sleep(0.1)
        return controller.pages.document()


def exit_code(document: dict[str, Any]) -> int:
    """0 all well, 1 something is wrong, 3 something cannot be seen."""
    causes = [(job["verdict"] or {}).get("cause", "unknown") for job in document["jobs"]]
    if any(cause not in _HEALTHY | {"unknown", "blind"} for cause in causes):
        return 1
    return 3 if any(cause not in _HEALTHY for cause in causes) else 0


def make(
    settings: ControllerSettings, say: Callable[[str], None], *, has_hands: bool = True
) -> Controller:
    fleet = FleetSettings() if settings.fleet is None else load_fleet(settings.fleet)
    access = Access(connect(settings.kubeconfig, settings.context))
    namespace = settings.namespace or access.namespace

    def hands(lease: Lease, events: Events, clock: Clock) -> HandsLike:
        if not has_hands:
            return NoHands()
        return Hands(
            access, namespace, lease=lease, clock=clock.now, events=events, settings=fleet,
            evidence=settings.evidence,
        )  # fmt: skip

    return Controller(settings, access, hands, say)


def _settle() -> None:
    """For a process with a large, steady heap and two busy threads: thousands of pods live for
    days, and the thread that polls them must not wait for the one that looks at them."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    sys.setswitchinterval(_SWITCH_SECONDS)


def _are_all_asked(controller: Controller) -> bool:
    """Each pod that runs has answered, or failed to."""
    return controller.has_met_all and all(
        each.snapshot is not None or each.problem or each.pod.phase != "Running"
        for watch in controller.jobs
        for each in watch.pods.values()
    )
