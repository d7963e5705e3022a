# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""In which mode a job's wrappers start, as its pods' template says.

The annotation on the job is what the controller goes by, and can be changed while the pods run;
the template is what the wrappers go by. A mode that is not written there (an image that sets it,
`envFrom`, an option of the command) is not seen.
"""

from __future__ import annotations

from mwatch.model.kube.fields import items, text
from mwatch.model.kube.job import KubeJob

_VARIABLE = "MWATCH_MODE"


def wrapper_modes(job: KubeJob) -> frozenset[str]:
    """Empty: mwatch is not injected, or it cannot be told."""
    return frozenset(
        text(each, "value")
        for group in job.groups
        for container in items(group.template, "spec", "containers")
        for each in items(container, "env")
        if text(each, "name") == _VARIABLE
    )


def wrappers_observe(job: KubeJob) -> bool:
    """Some of them: such a wrapper asks nobody for its attempt, and counts from 1 in a new pod."""
    return "observe" in wrapper_modes(job)
