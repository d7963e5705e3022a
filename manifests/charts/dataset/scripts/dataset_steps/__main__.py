# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python3 -m dataset_steps STEP SETTINGS`: one step. Ends with 0, 1 (again) or 2 (no use)."""

from __future__ import annotations

import os
import signal
import sys

from dataset_steps import tool
from dataset_steps.concatenate import concatenate
from dataset_steps.count import count_all
from dataset_steps.download import download
from dataset_steps.extract import extract
from dataset_steps.mds import convert, count_mds
from dataset_steps.preprocess import preprocess
from dataset_steps.problem import Problem
from dataset_steps.say import say
from dataset_steps.settings import read_settings

STEPS = {
    "download": download,
    "extract": extract,
    "concatenate": concatenate,
    "preprocess": preprocess,
    "count": count_all,
    "convert": convert,
    "count-mds": count_mds,
}


def main(words: list[str]) -> int:
    if len(words) != 2 or words[0] not in STEPS:
        print(f"usage: python3 -m dataset_steps {'|'.join(STEPS)} SETTINGS", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    try:
        STEPS[words[0]](read_settings(words[1]))
    except Problem as error:
        say(f"FAILED {error}")
        return error.code
    except OSError as error:
        say(f"FAILED {words[0]}: {error}")
        return 1
    return 0


def _leave(number: int, _: object) -> None:
    """At once. The container's first process, which this is, would not hear the signal otherwise,
    and the pod would wait for its whole grace period."""
    tool.stop()
    say("stopped; another pod goes on from here")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
