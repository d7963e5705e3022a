# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""mtail, an independent program, ends with the values that our reader ends with."""

from __future__ import annotations

import math
import re
import subprocess
from pathlib import Path

import pytest

from mwatch.model.event import Iteration
from support.builders.events import events, only

TESTS = Path(__file__).parent
PROGRAM = TESTS.parent / "benchmarks" / "mtail" / "plain.mtail"
METRIC = re.compile(r"^(\w+)\{prog=\"plain\.mtail\"\} (\S+)$", re.MULTILINE)
FIELDS = (
    "iteration", "total_iterations", "consumed_samples", "elapsed_ms", "learning_rate",
    "global_batch_size", "lm_loss", "loss_scale", "grad_norm", "skipped",
)  # fmt: skip


def of_mtail(mtail: Path, log: Path) -> dict[str, float]:
    # Its JSON cannot hold a NaN; port 0 is a free one.
    done = subprocess.run(
        [mtail, "--one_shot", "--one_shot_format", "prometheus", "--logtostderr",
         "--address", "127.0.0.1", "--port", "0", "--progs", PROGRAM, "--logs", log],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return {name: float(value) for name, value in METRIC.findall(done.stdout)}


def of_mwatch(log: Path) -> dict[str, float]:
    """The last value that was printed of each field, and the sum of the skipped iterations."""
    ends: dict[str, float] = dict.fromkeys(FIELDS, 0)
    for step in only(events(log.read_bytes()), Iteration):
        values = {**step._asdict(), "lm_loss": step.losses.get("lm loss")}
        values["skipped"] = ends["skipped"] + (step.skipped or 0)
        ends |= {name: values[name] for name in FIELDS if values[name] is not None}
    return ends


@pytest.mark.parametrize("incident", ["fp16-warm-up", "nan-guard-off"])
def test_the_ten_fields_end_alike(incident: str, mtail: Path) -> None:
    log = TESTS / "corpus" / incident / "trainer.log"
    theirs, ours = of_mtail(mtail, log), of_mwatch(log)
    assert set(theirs) == set(FIELDS)
    unequal = [
        (name, ours[name], theirs[name])
        for name in FIELDS
        if ours[name] != theirs[name] and not (math.isnan(ours[name]) and math.isnan(theirs[name]))
    ]
    assert unequal == []
