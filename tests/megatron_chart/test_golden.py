# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Two whole renders, word by word. To take over a change that is meant:
`MWATCH_GOLDEN=1 python -m pytest tests/megatron_chart/test_golden.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.repository.chart_renders import MEGATRON, rendered_text
from support.runs.megatron_runs import words_for

FOLDER = Path(__file__).parent / "golden"
CASES = {
    "aks-175b": ("aks", "175b"),
    "hyperpod-7.5B": ("hyperpod", "7.5B"),
}
HEADER = "# SPDX-FileCopyrightText: The mwatch authors\n# SPDX-License-Identifier: Apache-2.0\n"


@pytest.mark.parametrize("case", CASES)
def test_the_render_is_the_golden_one(case: str) -> None:
    text = HEADER + rendered_text(MEGATRON, *words_for(*CASES[case]))
    file = FOLDER / f"{case}.yaml"
    if os.environ.get("MWATCH_GOLDEN"):
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")
