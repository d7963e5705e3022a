# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The page of the real sidecar: live, with the pod's name, and off by a flag or a variable."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError

import pytest

from support.runs.live_volume import LiveVolume
from support.runs.sidecar_runs import environment, sidecar, until


def test_the_page_of_a_pod_shows_its_run_and_the_commands_for_its_job(tmp_path: Path) -> None:
    volume = LiveVolume(tmp_path / "mwatch")
    volume.start()
    options = ("--name", "gpt", "--pod", "gpt-0", "--namespace", "training")
    with sidecar(volume.path, *options) as one:
        volume.say(1, 40)
        until(lambda: one.metric("mwatch_iteration") == 40)
        shown = until(lambda: "<b>40</b>" in (page := one.get("/").decode()) and page)
        assert "<h1>gpt · pod gpt-0</h1>" in shown
        assert "mwatch diagnose gpt -n training" in shown
        assert 'id="loss"' in shown, "curves reach back to before the page was opened"
        volume.say(41, 60)
        until(lambda: b"<b>60</b>" in one.get("/"))


def test_a_pod_that_has_not_started_has_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "mwatch").mkdir()
    with sidecar(tmp_path / "mwatch") as one:
        shown = until(lambda: one.get("/").decode())  # a busy one asks to come again (503)
        assert "no data yet" in shown and "Nothing is running yet" in shown


@pytest.mark.parametrize("way", ["flag", "variable"])
def test_the_page_can_be_turned_off(tmp_path: Path, way: str) -> None:
    (tmp_path / "mwatch").mkdir()
    options = ("--no-page",) if way == "flag" else ()
    env = environment(MWATCH_NO_PAGE="true") if way == "variable" else environment()
    with sidecar(tmp_path / "mwatch", *options, env=env) as one:
        with pytest.raises(HTTPError, match="404"):
            one.get("/")
        assert one.get("/healthz") == b"ok\n"
