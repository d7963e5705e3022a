# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""dcgm-exporter on machines that this one is not: an old one (`Hostname`) and a new (`hostname`).

The old node has a GPU whose rank mwatch knows; that another pod had it earlier does not matter.
The new one has a GPU of the run's pod that mwatch
does not see at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from monitoring.fake_pod import NAMESPACE, POD
from monitoring.panel_queries import queries
from mwatch.export.http.server import Page, Pages, Request, Server

_OLD = 'gpu="2",UUID="GPU-2",Hostname="node-old",modelName="fake",pod="other",namespace="other"'
_NEW = f'gpu="0",UUID="GPU-9",hostname="node-new",pod="{POD}",namespace="{NAMESPACE}"'


_NAMES = sorted({name for each in queries() for name in re.findall(r"DCGM_\w+", each.expr)})
_VALUES = {
    "DCGM_FI_DEV_FB_USED": 61_000.0,
    "DCGM_FI_DEV_GPU_TEMP": 64.0,
    "DCGM_FI_DEV_GPU_UTIL": 88.0,
    "DCGM_FI_DEV_POWER_USAGE": 580.0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0.0,
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.55,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.38,
}
"""All others count."""


def _pages(labels: str) -> Pages:
    began = time.monotonic()

    def metrics(request: Request) -> Page:
        passed = time.monotonic() - began
        lines = [f"{name}{{{labels}}} {_VALUES.get(name, passed // 20)}" for name in _NAMES]
        return Page(("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")

    return {"/metrics": metrics}


@contextmanager
def fake_dcgm() -> Iterator[tuple[str, str]]:
    """The addresses of the old and of the new one."""
    old, new = Server(_pages(_OLD), port=0), Server(_pages(_NEW), port=0)
    try:
        yield f"127.0.0.1:{old.port}", f"127.0.0.1:{new.port}"
    finally:
        old.close()
        new.close()
