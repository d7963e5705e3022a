# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence off the pod: by the wrapper, or from here where there is none; never when observing."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mwatch.evidence.bundle import OffloadResult
from mwatch.evidence.collector import OffPod
from mwatch_trainer.control.client import ask
from mwatch_trainer.evidence.incidents import beside

ID = "20260105T121314Z-a1-hang"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "volume" / "incidents" / ID
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


def off_pod(tmp_path: Path, save: Path | None, *, is_act: bool = True) -> OffPod:
    """There is no wrapper on this volume."""
    volume = str(tmp_path / "volume")
    return OffPod(lambda request, seconds: ask(volume, request, seconds), lambda: save,
                  lambda: is_act)  # fmt: skip


def test_without_a_wrapper_it_is_copied_from_here(tmp_path: Path, bundle: Path) -> None:
    save = tmp_path / "save"
    save.mkdir()
    stored = off_pod(tmp_path, save).keep(bundle, ID, 5.0)
    target = Path(beside(str(save))) / ID
    assert stored == OffloadResult(str(target))
    assert os.listdir(target) == ["manifest.json"]
    assert stat.S_IMODE((target / "manifest.json").stat().st_mode) == 0o600


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, bundle: Path) -> None:
    """A path of the training container need not be one here."""
    stored = off_pod(tmp_path, tmp_path / "save").keep(bundle, ID, 5.0)
    assert stored.folder is None
    assert "cannot be written from here" in stored.why
    assert not (tmp_path / "save").exists()
    assert "is unknown" in off_pod(tmp_path, None).keep(bundle, ID, 5.0).why


def test_observing_asks_nobody_and_touches_nothing(tmp_path: Path, bundle: Path) -> None:
    save = tmp_path / "save"
    save.mkdir()
    stored = off_pod(tmp_path, save, is_act=False).keep(bundle, ID, 5.0)
    assert stored == OffloadResult(None, "observe mode does not write to the checkpoint folder")
    assert os.listdir(save) == []


ANSWERS: list[tuple[dict[str, Any], OffloadResult]] = [
    ({"ok": True, "state": "kept", "folder": "/s/x"}, OffloadResult("/s/x")),
    (
        {"ok": True, "state": "copying", "folder": "/s/x"},
        OffloadResult("/s/x", "still being copied"),
    ),
    ({"ok": False, "error": "disk full"}, OffloadResult(None, "disk full")),
]


@pytest.mark.parametrize(("answer", "stored"), ANSWERS)
def test_what_the_wrapper_says_is_reported(
    bundle: Path, answer: dict[str, Any], stored: OffloadResult
) -> None:
    asked: list[Mapping[str, Any]] = []

    def wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        asked.append(request)
        return answer

    assert OffPod(wrapper, lambda: None, lambda: True).keep(bundle, ID, 5.0) == stored
    assert asked == [{"op": "keep", "id": ID, "seconds": 4.0}]


def test_a_wrapper_that_cannot_be_reached_is_reported(bundle: Path) -> None:
    def wrapper(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        raise OSError("broken pipe")

    stored = OffPod(wrapper, lambda: None, lambda: True).keep(bundle, ID, 5.0)
    assert stored == OffloadResult(None, "the wrapper did not answer: broken pipe")
