# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the watcher itself costs."""

from __future__ import annotations

from pathlib import Path

from mwatch.runtime.self_monitoring import OwnUse


def test_memory_and_time_of_this_process() -> None:
    use = OwnUse(5.0)
    assert use.started_at == 5.0
    assert (use.resident_bytes() or 0) > 1 << 20
    before = use.cpu_seconds()
    sum(range(200_000))
    assert use.cpu_seconds() > before


def test_a_kernel_that_shows_nothing_is_unknown(tmp_path: Path) -> None:
    assert OwnUse(0.0, str(tmp_path / "none")).resident_bytes() is None
    (tmp_path / "odd").write_text("odd")
    assert OwnUse(0.0, str(tmp_path / "odd")).resident_bytes() is None
