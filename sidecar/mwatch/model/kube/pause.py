# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A person has taken a job over for a while: the annotation `mwatch.dev/pause`.

`mwatch pause` writes an object with an end. Whatever else stands there, set by hand, holds until
somebody takes it away: `kubectl annotate job/x mwatch.dev/pause=yes` is enough.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

from mwatch.model.kube.job import PAUSE, KubeJob

MAX_TEXT = 200


class Pause(NamedTuple):
    until: float | None
    """None: until it is taken away."""
    who: str
    why: str

    @property
    def words(self) -> str:
        return ": ".join(each for each in (self.who, self.why) if each)


def pause_of(job: KubeJob, now: float) -> Pause | None:
    """None: it is not paused, or no longer."""
    text = job.annotations.get(PAUSE)
    if text is None:
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Pause(None, "", text[:MAX_TEXT])
    until = body.get("until")
    end = None
    if isinstance(until, int | float) and not isinstance(until, bool) and math.isfinite(until):
        end = float(until)
    if end is not None and end <= now:
        return None
    return Pause(end, str(body.get("who", ""))[:MAX_TEXT], str(body.get("why", ""))[:MAX_TEXT])


def pause_text(pause: Pause) -> str:
    """The annotation."""
    words = {"who": pause.who[:MAX_TEXT], "why": pause.why[:MAX_TEXT]}
    until = {} if pause.until is None else {"until": round(pause.until)}
    return json.dumps({**until, **words}, sort_keys=True)
