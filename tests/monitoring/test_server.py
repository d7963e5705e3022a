# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Servers of others come up where there is room, say why they do not, and never stay behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monitoring.server import TRIES, serving

LISTENS = "import sys, http.server as h; h.test(h.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"


def listens(port: int) -> list[str]:
    return [sys.executable, "-c", LISTENS, str(port)]


def test_a_server_that_cannot_have_its_port_gets_another(tmp_path: Path) -> None:
    ports: list[int] = []

    def command(port: int) -> list[str]:
        ports.append(port)
        return ["false"] if len(ports) == 1 else listens(port)

    with serving(command, "/", tmp_path, "second-try") as server:
        assert server.port == ports[1] != ports[0]


def test_one_that_never_starts_is_reported_with_its_last_words(tmp_path: Path) -> None:
    line = ["sh", "-c", "echo no such flag >&2; exit 2"]
    with (
        pytest.raises(AssertionError, match="no such flag"),
        serving(lambda port: line, "/", tmp_path, "never"),
    ):
        pass
    assert (tmp_path / "never.log").read_text().count("no such flag") == TRIES


def test_it_is_gone_also_when_the_test_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), serving(listens, "/", tmp_path, "left") as server:
        raise ZeroDivisionError
    assert server.process.poll() is not None
