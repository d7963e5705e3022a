# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A policy file changes what it names, and a mistake in it is named."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from mwatch.config.policy import apply, load
from mwatch.errors import InputError
from mwatch.model.settings import Settings


def write(folder: Path, text: str) -> Path:
    file = folder / "policy.toml"
    file.write_text(text)
    return file


def leaves(kind: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every setting of the tree with its type."""
    found = []
    for name, inner in get_type_hints(kind).items():
        if is_dataclass(inner):
            found += leaves(inner, f"{path}{name}.")
        else:
            found.append((f"{path}{name}", inner))
    return found


def test_what_is_not_named_keeps_its_value(tmp_path: Path) -> None:
    text = "[hang]\nprobe_floor_seconds = 9\n[deadlines.training]\nfactor = 4.5\n"
    settings = load(write(tmp_path, text))
    assert settings.hang.probe_floor_seconds == 9.0
    assert settings.deadlines.training.factor == 4.5
    usual = Settings()
    assert settings.hang.probe_factor == usual.hang.probe_factor
    assert settings.deadlines.training.floor_seconds == usual.deadlines.training.floor_seconds
    assert settings.act == usual.act


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hang]\nprobe_flor_seconds = 9", "hang.probe_flor_seconds: no such setting; did you mean "
         "hang.probe_floor_seconds?"),
        ("[hangs]\nx = 1", "hangs: no such setting; did you mean hang?"),
        ("[deadlines.first-step]\nfactor = 2", "did you mean deadlines.first_step?"),
        ("[act]\nzzzz = 1", "act.zzzz: no such setting; known here: "),
        ("hang = 3", "hang: is a section; write [hang]"),
        ("[act]\nrestarts_per_window = 2.5", "is 2.5; give a whole number"),
        ("[act]\nrestarts_per_window = true", "is True; give a whole number"),
        ("[hang]\nprobe_factor = 'x'", "hang.probe_factor: is 'x'; give a number"),
        ("[hang]\nprobe_factor = 0.5", "hang.probe_factor: is 0.5; give a number from 1 to"),
        ("[hang]\nprobe_floor_seconds = -1", "give a number from 0 to"),
        ("[hang]\nprobe_floor_seconds = nan", "hang.probe_floor_seconds: is nan"),
        ("[deadlines]\nquantile = 1.5", "deadlines.quantile: is 1.5; give a number from 0 to 1"),
        ("[numbers]\nskip_rate = 7", "numbers.skip_rate: is 7; give a number from 0 to 1"),
        ("[deadlines.saving]\nfloor_seconds = 9000", "deadlines.saving.floor_seconds: 9000 is"),
        ("[hang", "is no TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_fix(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_an_input_error(tmp_path: Path) -> None:
    binary = tmp_path / "policy.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "no.toml", tmp_path, binary):
        with pytest.raises(InputError):
            load(file)


def test_every_setting_can_be_set_to_what_it_is() -> None:
    """A field of a kind that no file can name would be a setting that nobody can change."""
    tree: dict[str, Any] = {}
    for path, kind in leaves(Settings):
        assert kind in (int, float, bool, str), f"{path} is a {kind}"
        section, value = tree, Settings()
        *above, last = path.split(".")
        for name in above:
            section, value = section.setdefault(name, {}), getattr(value, name)
        section[last] = getattr(value, last)
    assert len(tree) == len(fields(Settings))
    assert apply(tree, Settings(), "x") == Settings()
