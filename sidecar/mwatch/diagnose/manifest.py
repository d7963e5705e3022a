# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch diagnose -f FILE`: the checks that need only the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from mwatch.checks.every import ALL, look
from mwatch.errors import InputError
from mwatch.manifests.kinds import JOBS
from mwatch.manifests.whole import workloads
from mwatch.model.checks import CheckLevel, Problem
from mwatch.operate.inject import found_json, read


@dataclass(frozen=True, slots=True)
class ManifestReport:
    file: str
    jobs: tuple[str, ...]
    found: tuple[Problem, ...]
    checks: int = len(ALL)

    @property
    def exit_code(self) -> int:
        return int(any(each.level is not CheckLevel.INFO for each in self.found))

    def as_json(self) -> dict[str, object]:
        return {
            "file": self.file,
            "jobs": list(self.jobs),
            "checks": self.checks,
            "findings": [found_json(each) for each in self.found],
        }


def check(file: str) -> ManifestReport:
    """Raise InputError if the file has no training job."""
    name, text = read(file)
    jobs = workloads(text, name)
    if not jobs:
        raise InputError(f"{name}: no training job; give the manifest of a {', '.join(JOBS)}")
    found = tuple(one for each in jobs for one in look(each))
    return ManifestReport(name, tuple(f"{each.kind}/{each.name}" for each in jobs), found)
