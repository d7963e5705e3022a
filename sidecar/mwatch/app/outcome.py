# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watched run came to: its exit code, and one sentence that says why.

Whoever heard every line (the wrapper) is asked before whoever read what a disk had room for.
"""

from __future__ import annotations

from mwatch.app.engine import Assessment
from mwatch.app.run_view import Ended
from mwatch.decide.policy import GIVE_UP_EXIT_CODE
from mwatch.decide.verdict import verdict
from mwatch.model.decision import Decision
from mwatch.model.finding import Cause
from mwatch.model.job import Job
from mwatch.model.wrapper import Ended as WrapperEnd

FENCED, NOT_AGREED = 203, 202
_LAST_WORDS = frozenset({FENCED, GIVE_UP_EXIT_CODE})
_USER_MENDS = frozenset({Cause.USER_ERROR, Cause.OOM, Cause.DATA})
_FINISHED = "training finished"
"""As `mwatch_trainer.exit_codes` puts it."""


def finished(wrapper: WrapperEnd | None) -> str | None:
    """How the command came to its end as it should; None: it did not, or nobody knows."""
    if wrapper is None or wrapper.code != 0 or not wrapper.reason:
        return None
    is_end = wrapper.reason.startswith(_FINISHED) or (wrapper.asked and wrapper.returned == 0)
    return wrapper.reason if is_end else None


def unstarted(wrapper: WrapperEnd | None) -> str | None:
    """Why the command was never started; None: it was."""
    is_unstarted = wrapper is not None and wrapper.code is None and wrapper.signal is None
    return wrapper.reason if wrapper is not None and is_unstarted else None


def last_word(code: int | None, wrapper: WrapperEnd | None) -> Ended | None:
    """Of a wrapper that acts: a newer attempt has begun elsewhere, or it must not go on. Whoever
    started it anew would fight for the checkpoints."""
    if code not in _LAST_WORDS:
        return None
    reason = wrapper.reason if wrapper is not None else None
    return Ended(code, reason or "the wrapper gave up", False)


def stopped(decision: Decision) -> Ended:
    code = 1 if decision.cause in _USER_MENDS else GIVE_UP_EXIT_CODE
    return Ended(code, decision.reason, False)


def outcome(code: int, job: Job, assessment: Assessment, wrapper: WrapperEnd | None) -> Ended:
    """The command has ended, and nothing is left to be done."""
    if job.attempt.is_done and not code:
        return Ended(0, f"training is done, iteration {job.attempt.iteration}", True)
    if not code and (said := finished(wrapper)) is not None:
        return Ended(0, said, True)
    if (why := unstarted(wrapper)) is not None:
        return Ended(code, why, False)
    told = verdict(job, assessment.findings, assessment.decision)
    return Ended(code, told.summary, told.cause in (Cause.FINISHED, Cause.HEALTHY))
