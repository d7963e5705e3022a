# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A policy file changes what it names, and a mistake in it is named."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from mwatch.config.loader import TomlSource, load_policy
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
    settings = load_policy(write(tmp_path, text))
    assert settings.hang.probe_floor_seconds == 9.0
    assert settings.deadlines.training.factor == 4.5
    usual = Settings()
    assert settings.hang.probe_factor == usual.hang.probe_factor
    assert settings.deadlines.training.floor_seconds == usual.deadlines.training.floor_seconds
    assert settings.act == usual.act


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    assert load_policy(write(tmp_path, "")) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hang]\nprobe_flor_seconds = 9", "line 2: unknown key hang.probe_flor_seconds; did you "
         "mean hang.probe_floor_seconds?"),
        ("[hangs]\nx = 1", "line 1: unknown key hangs; did you mean hang?"),
        ("[deadlines.first-step]\nfactor = 2", "line 1: unknown key deadlines.first-step; did you "
         "mean deadlines.first_step?"),
        ("[act]\nzzzz = 1", "line 2: unknown key act.zzzz; known keys: backoff_factor, "),
        ("hang = 3", "line 1: invalid value for hang: expected a section [hang]"),
        ("[act]\nrestarts_per_window = 2.5", "expected a whole number from 0 to 1e9, got 2.5"),
        ("[act]\nrestarts_per_window = true", "expected a whole number from 0 to 1e9, got True"),
        ("[hang]\n\n# why\nprobe_factor = 'x'", "line 4: invalid value for hang.probe_factor: "
         "expected a number from 1 to 1e6, got 'x'"),
        ("[hang]\nprobe_factor = 0.5", "expected a number from 1 to 1e6, got 0.5"),
        ("[hang]\nprobe_floor_seconds = -1", "line 2: invalid value for hang.probe_floor_seconds: "
         "expected a number of seconds from 0 to 316224000, got -1"),
        ("[hang]\nprobe_floor_seconds = nan", "got nan"),
        ("[hang]\nprobe_floor_seconds = inf", "got inf"),
        ("[deadlines]\nquantile = 1.5", "quantile: expected a number from 0 to 1, got 1.5"),
        ("[numbers]\nskip_rate = 7", "numbers.skip_rate: expected a number from 0 to 1, got 7"),
        ("[act]\n\n[deadlines.saving]\nfloor_seconds = 9000", "line 3: deadlines.saving."
         "floor_seconds (9000) is above ceiling_seconds (7200)"),
        ("hang = { probe_factor = 'x' }", "line 1: invalid value for hang.probe_factor"),
        ("hang.probe_factor = 'x'", "line 1: invalid value for hang.probe_factor"),
        ("['hang']\n'probe_factor' = 'x'", "line 2: invalid value for hang.probe_factor"),
        ("[act]\n[hang", "line 2: invalid TOML: Expected ']'"),
        ("[act]\nx = 'a\n", "line 2: invalid TOML"),
        ("a = " + "[" * 5000, "line 1: invalid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_fix(tmp_path: Path, text: str, said: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        load_policy(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_an_input_error(tmp_path: Path) -> None:
    binary = tmp_path / "policy.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "no.toml", tmp_path, binary):
        with pytest.raises(InputError):
            load_policy(file)


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
    assert TomlSource("x", "").section(tree, Settings(), "") == Settings()
