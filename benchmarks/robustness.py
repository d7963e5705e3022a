# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fuzzer's report as a row. The fuzzer is a child: what it loads would count as memory here."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.measure import python, run
from benchmarks.row import Row


def row(mutations: int, singles: int) -> Row:
    sizes = ("--mutations", str(mutations), "--singles", str(singles))
    usage = run(python("-m", "benchmarks.fuzz", *sizes))
    report: dict[str, Any] = json.loads(usage.output)
    failures = sum(report["failures"].values())
    read = report["read_bytes"] / 1e6
    found = "".join(f"\n    {each['problem']}: {each['input']}" for each in report["smallest"])
    return Row(
        "fuzz",
        f"{read / report['read_seconds']:.1f} MB/s",
        target="0 failures",
        met=failures == 0,
        note=(
            f"{report['mutated']} damaged lines of {report['lines']}, {report['readers']} readers, "
            f"{read:.0f} MB read in {report['read_seconds']:.0f} CPU s, {failures} failures{found}"
        ),
    )
