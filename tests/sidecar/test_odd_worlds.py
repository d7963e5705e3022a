# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The real sidecar in a world that is broken: it goes on, and says what it cannot do."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from pathlib import Path

from support.runs.live_volume import LiveVolume
from support.runs.sidecar_runs import (
    ENDS_SECONDS,
    Sidecar,
    command,
    environment,
    sidecar,
    until,
)


def test_a_disk_that_is_full_takes_nothing_from_what_is_served(tmp_path: Path) -> None:
    """No file may grow by a byte: what the sidecar says goes to a pipe."""
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start()
    volume.say(1, 2)
    process = subprocess.Popen(
        command("--dir", str(volume.path), "--name", "r", "--pod", "p", "--port", "0"),
        env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = ""
        while "/metrics" not in line:
            line = process.stdout.readline().decode()
        said = tmp_path / "said"
        said.write_text(line)
        one = Sidecar(process, volume.path, said)
        assert re.search(r":\d+/metrics", line)
        assert one.metric("mwatch_iteration") == 2
        volume.say(3)
        assert until(lambda: one.metric("mwatch_iteration") == 3)
        assert one.metric("mwatch_own_errors_total") == 0, "it is no fault of ours"
        assert not (volume.path / "sidecar.json").exists()
        assert one.ends() < ENDS_SECONDS
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_folders_where_files_should_be_and_files_of_nobody_are_survived(tmp_path: Path) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    (volume.path / "trainer.log").mkdir()
    (volume.path / "attempt.json").write_text('{"attempt": "many", "started_at": []}')
    (volume.path / "probe").write_text("no folder")
    (volume.path / "node").mkdir()
    (volume.path / "node" / "gpus.json").write_text('{"at": {}, "gpus": {"a": 1}}')
    with sidecar(volume.path) as one:
        assert one.get("/healthz") == b"ok\n"
        assert one.metric('mwatch_source_up{source="log"}') == 0
        shutil.rmtree(volume.path / "trainer.log")
        (volume.path / "probe").unlink()
        volume.start()
        volume.say(1)
        volume.second(5)
        assert until(lambda: one.metric("mwatch_iteration") == 5)
        assert one.metric("mwatch_own_errors_total") == 0


def test_a_save_folder_that_is_not_there_is_not_the_end(tmp_path: Path) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    with sidecar(volume.path, "--save", str(tmp_path / "none")) as one:
        assert until(lambda: one.metric('mwatch_source_up{source="checkpoints"}') == 0)
        volume.start()
        volume.say(1)
        assert until(lambda: one.metric("mwatch_iteration") == 1)
        assert until(lambda: one.metric("mwatch_attempt") == 1)


def test_the_mode_is_only_reported(tmp_path: Path) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start(mode="observe")
    with sidecar(volume.path, "--mode", "act") as one:
        assert until(lambda: one.metric("mwatch_acting") == 1)
    with sidecar(volume.path) as other:
        assert until(lambda: other.metric("mwatch_acting") == 0), "as the wrapper says"
