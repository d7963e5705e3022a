# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One detector per file: a job in, findings out. `ALL` is the list of them."""

from __future__ import annotations

import importlib
import pkgutil

from mwatch.model.finding import Detector, Finding
from mwatch.model.job import Job
from mwatch.model.settings import Settings

# PLACEHOLDER until all detectors exist
ALL: tuple[Detector, ...] = ()


def _load() -> tuple[Detector, ...]:
    found = []
    for info in pkgutil.iter_modules(__path__):
        try:
            module = importlib.import_module(f"{__name__}.{info.name}")
        except Exception:
            continue
        if hasattr(module, "DETECTOR"):
            found.append(module.DETECTOR)
    return tuple(found)


def run(job: Job, settings: Settings) -> list[Finding]:
    """What all detectors say that can see anything."""
    global ALL
    ALL = ALL or _load()
    findings: list[Finding] = []
    for detector in ALL:
        if detector.needs and not any(job.sees(sight) for sight in detector.needs):
            continue
        findings += detector.detect(job, settings)
    return findings
