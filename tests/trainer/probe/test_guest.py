# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe is a guest: whatever happens to its files, the program does not notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.builders.probe import SITE, WORKER, beat_after, finished, record_of, running, wait_for

WAIT = "import sys\nsys.stdin.readline()\nprint('done')\n"
DONE = (0, "done\n", "")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def remove(folder: Path, *, aside: Path) -> None:
    """At once: file by file, a beat could come in between."""
    shutil.rmtree(folder.rename(aside / "removed"))


def test_a_volume_that_is_not_there(tmp_path: Path) -> None:
    with running(WAIT, tmp_path / "no" / "volume") as child:
        assert finished(child) == DONE
    assert not (tmp_path / "no").exists()


def test_a_volume_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "volume").write_text("")
    with running(WAIT, tmp_path / "volume") as child:
        assert finished(child) == DONE


def test_a_volume_that_is_full(volume: Path) -> None:
    """No file may grow: what a disk without room answers."""
    environ = {"MWATCH_DIR": str(volume), "PYTHONPATH": str(SITE), **WORKER}
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-c"]
    done = subprocess.run(
        [*limited, "import time\ntime.sleep(1.2)"], env=environ, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (volume / "probe" / "rank-0").read_bytes() == b""


def test_a_record_that_is_cut_short_while_it_is_written(volume: Path) -> None:
    with running(WAIT, volume) as child:
        beat = beat_after(volume)
        os.truncate(volume / "probe" / "rank-0", 0)  # through a mapping this would be a SIGBUS
        beat_after(volume, beat.ticks + 1)
        assert finished(child) == DONE


def test_a_volume_that_is_emptied_is_used_again(volume: Path) -> None:
    with running(WAIT, volume) as child:
        beat = beat_after(volume)
        remove(volume / "probe", aside=volume.parent)
        later = wait_for(lambda: record_of(volume), "the record to be there again")
        assert later.ticks > beat.ticks
        assert finished(child) == DONE


def test_a_volume_that_vanishes_is_not_made_again(volume: Path) -> None:
    with running(WAIT, volume) as child:
        beat_after(volume)
        remove(volume, aside=volume.parent)
        assert finished(child) == DONE
    assert not volume.exists()


def test_a_record_that_is_a_link_or_a_pipe_is_not_written_through(volume: Path) -> None:
    (volume / "probe").mkdir()
    target = volume / "target"
    target.write_text("untouched")
    (volume / "probe" / "rank-0").symlink_to(target)
    os.mkfifo(volume / "probe" / "rank-1")
    for rank in ("0", "1"):
        with running(WAIT, volume, {**WORKER, "RANK": rank}) as child:
            assert finished(child) == DONE
    assert target.read_text() == "untouched"


def test_a_program_without_standard_streams_is_not_disturbed(volume: Path) -> None:
    code = "import os, sys\nos.close(1)\nos.close(2)\nsys.stdin.readline()\nos._exit(7)\n"
    with running(code, volume) as child:
        beat_after(volume)
        assert finished(child) == (7, "", "")


def test_a_crash_of_the_program_is_its_own(volume: Path) -> None:
    with running("raise SystemExit(3)", volume) as child:
        assert finished(child) == (3, "", "")
    with running("1 / 0", volume) as child:
        code, _, err = finished(child)
    assert code == 1
    assert "ZeroDivisionError" in err
    assert "mwatch" not in err


CHAINED = """
import sys
print("theirs", __name__, __file__, [each for each in sys.path if each.endswith("site")])
MARK = 1
"""
SHOW = "import sys\nprint(sys.modules['sitecustomize'].MARK, 'usercustomize' in sys.modules)\n"


def chained(code: str, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(SITE), str(folder)])
    environ = {"MWATCH_DIR": str(folder), "PYTHONPATH": path, "PATH": "/bin", **WORKER}
    return subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60
    )


def test_the_next_sitecustomize_runs_as_if_ours_were_not_there(volume: Path) -> None:
    done = chained(CHAINED, volume, SHOW)
    assert done.stdout.splitlines()[0] == f"theirs sitecustomize {volume}/sitecustomize.py []"
    assert done.stdout.splitlines()[1].startswith("1 ")
    assert done.stderr == ""
    assert record_of(volume) is not None


def test_an_error_in_the_next_sitecustomize_is_reported_as_ever(volume: Path) -> None:
    for broken in ("raise RuntimeError('theirs')", "import not_there_at_all"):
        done = chained(broken, volume, "print('on')")
        assert done.stdout == "on\n"
        assert done.stderr.startswith("Error in sitecustomize")
        assert ("theirs" in done.stderr) or ("not_there_at_all" in done.stderr)


def test_ours_is_not_on_the_path_of_the_program(volume: Path) -> None:
    code = "import sys\nprint([p for p in sys.path if 'mwatch_trainer' in p])\n"
    with running(code, volume) as child:
        assert finished(child) == (0, "[]\n", "")


def test_a_package_of_ours_that_is_broken_costs_only_the_probe(tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "mwatch_trainer"
    shutil.copytree(SITE.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "probe.py").write_text("raise RuntimeError('ours')")
    environ = {"PYTHONPATH": str(copy / "site"), "MWATCH_DIR": str(tmp_path), **WORKER}
    done = subprocess.run(
        [sys.executable, "-c", "print('on')"], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")
