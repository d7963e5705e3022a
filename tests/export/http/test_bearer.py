# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who has the token gets in; who has not does not, and cannot keep others out."""

from __future__ import annotations

import os
from http import HTTPStatus
from pathlib import Path

import pytest

from mwatch.export.http.control import MAX_FAILURES, WINDOW_SECONDS, Bearer
from mwatch.export.http.server import Request

TOKEN = "0123456789abcdef0123456789abcdef"


def asked(header: str | None, client: str = "10.0.0.1", name: str = "Authorization") -> Request:
    return Request("/", {} if header is None else {name: header}, client=client)


def status(bearer: Bearer, request: Request) -> HTTPStatus | None:
    refusal = bearer.refusal(request)
    return None if refusal is None else refusal.status


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "token"
    made.write_text(TOKEN + "\n")
    return made


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_token_opens(file: Path, name: str, scheme: str) -> None:
    assert status(Bearer(file), asked(f"{scheme} {TOKEN}", name=name)) is None


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}",
     f"Bearer {TOKEN}x", "Bearer ünïcode", "Bearer \udcff"],
)  # fmt: skip
def test_anything_else_does_not(file: Path, header: str | None) -> None:
    assert status(Bearer(file), asked(header)) is HTTPStatus.UNAUTHORIZED


def test_without_a_configured_token_it_is_closed_and_says_so() -> None:
    refusal = Bearer(None).refusal(asked(f"Bearer {TOKEN}"))
    assert refusal is not None
    assert refusal.status is HTTPStatus.FORBIDDEN
    assert refusal.text.startswith("no token is configured for this job")


@pytest.mark.parametrize("text", ["", "\n", "short", "x" * 5000])
def test_a_file_without_a_usable_token_is_closed(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    found = status(Bearer(tmp_path / "token"), asked(f"Bearer {text.strip()}"))
    assert found is HTTPStatus.FORBIDDEN


def test_a_token_that_is_not_mounted_yet_may_be_tried_again(tmp_path: Path) -> None:
    bearer = Bearer(tmp_path / "token")
    assert status(bearer, asked(f"Bearer {TOKEN}")) is HTTPStatus.SERVICE_UNAVAILABLE
    (tmp_path / "token").write_text(TOKEN)
    assert status(bearer, asked(f"Bearer {TOKEN}")) is None


def test_a_token_that_is_changed_as_a_mounted_secret_is_holds_at_once(tmp_path: Path) -> None:
    for name, text in (("one", "a" * 20), ("two", "b" * 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(text)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    bearer = Bearer(tmp_path / "token")
    assert status(bearer, asked("Bearer " + "a" * 20)) is None
    (tmp_path / "new").symlink_to("two")
    os.replace(tmp_path / "new", tmp_path / "..data")
    assert status(bearer, asked("Bearer " + "a" * 20)) is HTTPStatus.UNAUTHORIZED
    assert status(bearer, asked("Bearer " + "b" * 20)) is None


def test_who_guesses_is_held_off_for_a_while_and_others_are_not(file: Path) -> None:
    now = [0.0]
    bearer = Bearer(file, lambda: now[0])
    for _ in range(MAX_FAILURES):
        assert status(bearer, asked("Bearer wrong")) is HTTPStatus.UNAUTHORIZED
    assert status(bearer, asked(f"Bearer {TOKEN}")) is HTTPStatus.TOO_MANY_REQUESTS
    assert status(bearer, asked(f"Bearer {TOKEN}", client="10.0.0.2")) is None
    now[0] = WINDOW_SECONDS + 1
    assert status(bearer, asked(f"Bearer {TOKEN}")) is None


def test_guesses_from_many_addresses_take_no_memory(file: Path) -> None:
    bearer = Bearer(file)
    for number in range(5000):
        bearer.refusal(asked("Bearer wrong", client=f"10.0.{number >> 8}.{number & 255}"))
    assert len(bearer._failures) <= 1024
