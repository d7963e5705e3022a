# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The Job that converts a base model, run for real but for Megatron's converter.

That was run once by hand, with this command line and a small model: of core_v0.17.1 it works, of
core_v0.16.1 it does not, neither without a GPU; and it ends with 0 when its writer has died.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.repository.chart_renders import MEGATRON, only, rendered, sets
from support.runs.megatron_runs import CONTINUED

FAKE_CONVERTER = """#!/bin/sh
for word; do case $word in --save-dir=*) to=${word#*=} ;; esac; done
echo run >> "$RUNS"
for part in WRITTEN; do
    mkdir -p "$to/iter_0000001/mp_rank_0$part"
    echo weights > "$to/iter_0000001/mp_rank_0$part/model_optim_rng.pt"
    echo 1 > "$to/latest_checkpointed_iteration.txt"
done
exit CODE
"""


class Conversion:
    def __init__(self, folder: Path) -> None:
        self.target = folder / "checkpoints" / "gpt-base"
        self.target.parent.mkdir()
        self.runs = folder / "runs"
        self._program = folder / "python3"
        job = only(rendered(MEGATRON, *CONTINUED, *sets("continued.stage=convert")), "Job")
        words = job["spec"]["template"]["spec"]["containers"][0]["command"]
        self._words = [each.replace("/checkpoints/", f"{self.target.parent}/") for each in words]

    def run(self, written: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        text = FAKE_CONVERTER.replace("WRITTEN", written).replace("CODE", str(code))
        with self.start(text) as process:
            out, error = process.communicate(timeout=60)
        return subprocess.CompletedProcess(self._words, process.returncode, out, error)

    def start(self, converter: str) -> subprocess.Popen[str]:
        self._program.write_text(converter)
        self._program.chmod(0o755)
        search = f"{self._program.parent}:{os.environ['PATH']}"
        return subprocess.Popen(
            self._words,
            env={"PATH": search, "RUNS": str(self.runs)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def conversion(tmp_path: Path) -> Conversion:
    return Conversion(tmp_path)


def test_a_whole_conversion_gets_its_name_and_is_not_made_twice(conversion: Conversion) -> None:
    for _ in range(2):
        done = conversion.run("0 1 2 3")
        assert done.returncode == 0, done.stderr
    assert len(list(conversion.target.rglob("model_optim_rng.pt"))) == 4
    assert conversion.runs.read_text() == "run\n"


@pytest.mark.parametrize(("written", "code"), [("", 0), ("0 1", 0), ("0 1 2 3", 1)])
def test_a_conversion_that_is_not_whole_fails_and_is_made_again(
    conversion: Conversion, written: str, code: int
) -> None:
    assert conversion.run(written, code).returncode == 1
    assert not conversion.target.exists()
    assert conversion.run("0 1 2 3").returncode == 0
    assert len(list(conversion.target.rglob("model_optim_rng.pt"))) == 4


def test_a_conversion_that_is_asked_to_end_ends_at_once(conversion: Conversion) -> None:
    with conversion.start("#!/bin/sh\necho begun\nexec sleep 600\n") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.terminate()
        assert process.wait(60) == 143
    assert not conversion.target.exists()
