# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A signal, a full disk, parts that went missing: afterwards all is whole, or nothing is taken."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from gpt.conversions import Stop, job, nothing, stop_after, stop_at_name
from gpt.corpora import both, convert, json_lines, many
from gpt.launch import ROOT
from mwatch_gpt.data import conversion, tool
from mwatch_gpt.data.corpus import BadInput


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("calls", [1, 4, 9])
def test_a_signal_in_the_middle_of_a_block_leaves_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Ctrl-C comes between any two steps: here tokens and lengths are written, documents not."""
    lines = [json.dumps({"text": text, "title": f"{n}"}) for n, text in enumerate(many(300))]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for name in ("whole", "cut"):
        if name == "cut":
            interrupt(monkeypatch, calls)
        argv = ["--input", str(tmp_path / "a.jsonl"), "--output-prefix", str(tmp_path / name)]
        argv += ["--json-keys", "text", "title", "--workers", "1", "--save-seconds", "0"]
        assert tool.main(argv) == (0 if name == "whole" else 130)
    monkeypatch.undo()
    assert tool.main(argv) == 0
    for key in ("text", "title"):
        assert both(tmp_path / "cut", key) == both(tmp_path / "whole", key)


def interrupt(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    left = [calls]

    def stops(*words: object, **more: object) -> object:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return accumulate(*words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("mwatch_gpt.data.writer.accumulate", stops)


def test_a_full_disk_is_the_machines_doing_and_what_was_written_is_of_use(tmp_path: Path) -> None:
    """A process with a limit on the size of its files, which fails as a full disk does."""
    source = json_lines(tmp_path / "a.jsonl", many(60_000))
    argv = ["--input", str(source), "--output-prefix", str(tmp_path / "o"), "--workers", "1"]
    run = [sys.executable, "-m", "mwatch_gpt.data", *argv, "--save-seconds", "0"]
    small = f"ulimit -f 3000; exec {shlex.join(run)}"
    around = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    done = subprocess.run(
        ["bash", "-c", small], env=around, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert "File too large; the same command goes on from here" in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.suffix for path in tmp_path.glob("o_*")} == {".part", ".json"}
    told = conversion.convert(job(source, tmp_path / "o"), nothing)
    assert told.resumed_at is not None
    assert convert(source, tmp_path / "whole") == 0
    assert both(tmp_path / "o") == both(tmp_path / "whole")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stage", ["writing", "finishing"])
@pytest.mark.parametrize("part", ["bin", "lengths", "documents"])
def test_with_overwrite_lost_parts_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, stage: str
) -> None:
    source = json_lines(tmp_path / "a.jsonl", many(300))
    assert convert(source, tmp_path / "whole") == 0
    stop_at_name(monkeypatch, ".bin")
    with pytest.raises(Stop):
        progress = stop_after(2) if stage == "writing" else nothing
        conversion.convert(job(source, tmp_path / "o"), progress)
    monkeypatch.undo()
    (tmp_path / f"o_text_document.{part}.part").unlink()
    with pytest.raises(BadInput, match="--overwrite starts over"):
        conversion.convert(job(source, tmp_path / "o"), nothing)
    conversion.convert(job(source, tmp_path / "o", overwrite=True), nothing)
    assert both(tmp_path / "o") == both(tmp_path / "whole")
