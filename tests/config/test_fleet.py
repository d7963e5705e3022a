# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The fleet's settings: what a file may say, and when a maintenance window holds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mwatch.config.fleet import FleetSettings, load
from mwatch.errors import InputError


def moment(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC).timestamp()


def loaded(tmp_path: Path, text: str) -> FleetSettings:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    return load(file)


def test_what_a_file_does_not_name_keeps_its_value(tmp_path: Path) -> None:
    found = loaded(
        tmp_path, 'max_restarts_at_once = 5\nkeep_node_out = "cordon"\nevidence_seconds = 30\n'
    )
    assert (found.max_restarts_at_once, found.keep_node_out) == (5, "cordon")
    assert found.evidence_seconds == 30.0 and found.common_cause_least == 2


def test_a_window_holds_on_its_days_and_over_midnight(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        '[[maintenance]]\ndays = ["sun"]\nfrom = "22:00"\nto = "02:00"\nwhy = "Lustre"\n'
        '[[maintenance]]\nfrom = "12:00"\nto = "12:30"\n',
    )
    assert found.maintained(moment("2026-11-15 23:00")) is not None  # a Sunday
    night = found.maintained(moment("2026-11-16 01:59"))
    assert night is not None and night.why == "Lustre"
    assert found.maintained(moment("2026-11-16 02:00")) is None
    assert found.maintained(moment("2026-11-15 01:00")) is None
    assert found.maintained(moment("2026-11-18 12:29")) is not None


@pytest.mark.parametrize(
    "text, told",
    [
        ("max_restart = 1", "unknown key max_restart; did you mean max_restarts_at_once?"),
        ('acting = "no"', "invalid value for acting: expected true or false, got 'no'"),
        ("max_restarts_at_once = 0", "expected a whole number from 1 on, got 0"),
        ("max_restarts_at_once = true", "expected a whole number from 1 on, got True"),
        ("workers = 1.5", "expected a whole number from 1 on, got 1.5"),
        ("avoid_hours = -1", "expected a number from 0 to 1e9, got -1"),
        ('keep_node_out = "yes"', "expected one of off, affinity, cordon, got 'yes'"),
        ("switch_labels = [1]", "switch_labels[0]: expected a list of labels"),
        ("maintenance = 3", "maintenance: expected [[maintenance]] tables with days"),
        (
            '[[maintenance]]\ndays = ["sunday"]\nfrom = "1:00"\nto = "2:00"',
            "maintenance[0].days[0]: expected some of mon, tue",
        ),
        ('[[maintenance]]\ndays = []\nfrom = "1:00"\nto = "2:00"', "expected some of mon, tue"),
        (
            '[[maintenance]]\nfrom = "25:00"\nto = "2:00"',
            'maintenance[0].from: expected a time such as "02:00"',
        ),
        ('[[maintenance]]\nfrom = 2\nto = "2:00"', 'expected a time such as "02:00"'),
        ('[[maintenance]]\nfrom = "2:00"', "expected [[maintenance]] tables with days"),
        ('[[maintenance]]\nfrom = "2:00"\nto = "3:00"\nx = 1', "expected [[maintenance]] tables"),
        ("x = = 1", "line 1: invalid TOML"),
    ],
)
def test_what_is_no_setting_is_refused_by_its_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, text)
    assert told in str(caught.value) and "fleet.toml" in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="check the path"):
        load(tmp_path / "missing.toml")


def test_the_key_of_an_earlier_release_is_still_read(tmp_path: Path) -> None:
    assert loaded(tmp_path, "max_sight_seconds = 12\n").max_view_age_seconds == 12.0
