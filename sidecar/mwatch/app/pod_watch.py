# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which data and folders the attempt that runs stands on, and what the pod sees of them.

Its command line tells, or else the argument block that it prints: another attempt may have others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mwatch.app.live import Live
from mwatch.model.event import Arguments
from mwatch.model.observation import Observed
from mwatch.model.pod import PodFacts
from mwatch.sources.pod_facts import PodLook, data_prefixes, printed_prefixes


class PodWatch:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._look: PodLook | None = None
        self._about: tuple[Sequence[str], Path | None] = ((), None)
        self._printed: Sequence[str] = ()

    def told(self, observed: Observed) -> None:
        if isinstance(observed.what, Arguments):
            self._printed = printed_prefixes(observed.what.extra)

    def facts(self) -> PodFacts | None:
        """As last looked at, which is rare; never waits."""
        wrapper, save = self._live.wrapper, self._live.save
        given = data_prefixes(() if wrapper is None else wrapper.argv)
        about = (given or self._printed, save)
        if self._look is None or about != self._about:
            self._about = about
            self._look = PodLook(about[0], None if save is None else str(save), self._tracker)
        return self._look.facts

    def _tracker(self) -> str | None:
        return None if self._live.folder is None else self._live.folder.tracker
