# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What each annotation and each environment variable is for.

The names themselves are searched in the code: one without a line here fails the build, and so does
a line without a name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
T = TypeVar("T")
CODE = ("sidecar/mwatch", "trainer/mwatch_trainer")

ANNOTATIONS = {
    "mwatch.dev/watch": "Label. `true`: mwatch watches this job; `mwatch inject` sets it.",
    "mwatch.dev/mode": "`observe` (default) or `act`. `mwatch mode` sets it.",
    "mwatch.dev/policy": "ConfigMap with the policy of this job, key `policy.toml`.",
    "mwatch.dev/pause": "A pause, with its end, person and reason; set by `mwatch pause`.",
    "mwatch.dev/resume-from": "Iteration from which the next attempt resumes.",
    "mwatch.dev/attempt": "Number of the current attempt; set by the controller.",
    "mwatch.dev/injected": "What `mwatch inject` changed; `mwatch uninject` reads it.",
    "mwatch.dev/added-for": "On a Service that `mwatch inject` added: its job.",
    "mwatch.dev/replicas": "Of a StatefulSet that mwatch stopped: its replicas before.",
    "mwatch.dev/avoid": "Nodes that the next pods of the job are kept off.",
    "mwatch.dev/port": "Port of the sidecar, where its container port is not named `mwatch`.",
    "mwatch.dev/suspended-by": "What suspended the job: the id of a stop or of a restart.",
    "mwatch.dev/cordoned-until": "On a node that mwatch cordoned: until when.",
    "mwatch.dev/cordoned-for": "On a node that mwatch cordoned: the incident.",
}

WRAPPER, SIDECAR, ANY = "wrapper", "sidecar", "all"
VARIABLES = {
    "MWATCH_DIR": (
        ANY,
        "Shared folder of wrapper, probes and sidecar; default /mwatch.",
    ),
    "MWATCH_MODE": (ANY, "`observe` or `act`; default: observe."),
    "MWATCH_ATTEMPT": (WRAPPER, "Set by the wrapper for the trainer: number of the attempt."),
    "MWATCH_CONTROLLER": (WRAPPER, "Address of the controller that gives out attempts."),
    "MWATCH_NAMESPACE": (ANY, "Namespace of the pod."),
    "MWATCH_JOB": (ANY, "Name of the job."),
    "MWATCH_POD": (ANY, "Name of the pod."),
    "MWATCH_TOKEN": (WRAPPER, "Token of the job for the controller; better: a file."),
    "MWATCH_TOKEN_FILE": (ANY, "File with the token of the job."),
    "MWATCH_RESTART_POLICY": (
        WRAPPER,
        "Restart policy of the pod, for the exit codes.",
    ),
    "MWATCH_NODE_RANK": (WRAPPER, "Rank of this node, where the launcher does not set it."),
    "MWATCH_NNODES": (WRAPPER, "Number of nodes, where the launcher does not set it."),
    "MWATCH_SAVE": (ANY, "Folder of the checkpoints, where the command line does not show it."),
    "MWATCH_PROBE": (WRAPPER, "`0`: no probe in the ranks."),
    "MWATCH_PROBE_OWNER": (WRAPPER, "Internal: the process whose ranks get a probe."),
    "MWATCH_SCRUB": (
        ANY,
        "Your patterns of secrets, one a line; never stored.",
    ),
    "MWATCH_CONFIG": (SIDECAR, "TOML file with the settings of the sidecar."),
    "MWATCH_NOTIFY": (ANY, "Addresses to notify of incidents; see Notifications."),
    "MWATCH_UNTIL_FINAL": (SIDECAR, "`true`: end when no attempt follows in this pod."),
    "MWATCH_TRACEBACK": (ANY, "`1`: an error of mwatch itself is printed in full."),
    "_MWATCH_COMPLETE": (ANY, "Internal: completion of the shell."),
}

_ANNOTATION = re.compile(r"[\"'](mwatch\.dev/[a-z-]+)[\"']")
_VARIABLE = re.compile(r"[\"'](_?MWATCH_[A-Z_]*[A-Z])[\"']")


def _found(pattern: re.Pattern[str]) -> set[str]:
    files = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return {name for path in files for name in pattern.findall(path.read_text("utf-8"))}


def annotation_texts() -> dict[str, str]:
    return _complete(ANNOTATIONS, _found(_ANNOTATION))


def variable_texts(of_sidecar: set[str]) -> dict[str, tuple[str, str]]:
    """`of_sidecar`: those that follow from its settings have their text there."""
    found = _found(_VARIABLE)
    return _complete(VARIABLES, (found - of_sidecar) | (found & VARIABLES.keys()))


def _complete(known: dict[str, T], found: set[str]) -> dict[str, T]:
    missing, gone = sorted(found - known.keys()), sorted(known.keys() - found)
    if missing or gone:
        raise ValueError(f"docs_site/names.py: no text for {missing}, no longer used: {gone}")
    return known
