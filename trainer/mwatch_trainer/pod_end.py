# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether another attempt follows in this pod: Kubernetes decides by the exit code that it sees.

| restartPolicy of the pod | no attempt follows after |
| --- | --- |
| Never | any exit |
| OnFailure | exit 0 |
| Always | nothing |
| not told | what our own table calls the end |
"""

from __future__ import annotations

from typing import Mapping

POLICY = "MWATCH_RESTART_POLICY"


def is_last(returned: int, is_final: bool, environ: Mapping[str, str]) -> bool:
    """`returned`: what the container exits with; `is_final`: by what is worth a restart."""
    by_policy = {"Never": True, "OnFailure": returned == 0, "Always": False}
    return by_policy.get(environ.get(POLICY, ""), is_final)
