# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a sidecar says on standard output: few lines, each with its time, for `kubectl logs`.

The same news as of `mwatch run`. A source that comes and goes must not fill a node's disk with
months of it: a burst is let through, then a few lines a minute, and how many were left out is
told with the next one. `clean` takes secrets out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from mwatch.cli.run_lines import MAX_TEXT, RunLines
from mwatch.cli.terminal import plain

_BURST = 200.0
_PER_SECOND = 0.1


class SidecarLines(RunLines):
    def __init__(
        self,
        *,
        as_json: bool = False,
        clean: Callable[[str], str] = str,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(as_json=as_json)
        self._clean = clean
        self._wall = wall
        self._clock = clock
        self._may = _BURST
        self._at = clock()
        self._left_out = 0

    def _say(self, text: str, **record: Any) -> None:
        now = self._clock()
        self._may = min(self._may + (now - self._at) * _PER_SECOND, _BURST)
        self._at = now
        if self._may < 1.0:
            self._left_out += 1
            return
        self._may -= 1.0
        moment = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds")
        if self._as_json:
            more = {"left_out": self._left_out} if self._left_out else {}
            line = json.dumps({"time": moment, **record, **more})
        else:
            more_words = f" ({self._left_out} lines left out)" if self._left_out else ""
            line = f"{moment} {plain(text)[:MAX_TEXT]}{more_words}"
        self._left_out = 0
        if sys.stdout is not None:
            sys.stdout.write(self._clean(line) + "\n")
            sys.stdout.flush()
