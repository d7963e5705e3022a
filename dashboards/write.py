# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes all dashboards as JSON files."""

from __future__ import annotations

from pathlib import Path

from dashboards import fleet, goodput, gpu_network, own, run
from dashboards.board import Board
from dashboards.grafana import text

FOLDER = Path(__file__).resolve().parent
BOARDS: tuple[Board, ...] = (
    run.BOARD,
    fleet.BOARD,
    gpu_network.BOARD,
    goodput.BOARD,
    own.BOARD,
)


def files() -> dict[str, str]:
    """JSON text by file name."""
    return {f"{board.name}.json": text(board) for board in BOARDS}


def write(folder: Path = FOLDER) -> list[Path]:
    written = []
    for name, content in files().items():
        path = folder / name
        path.write_text(content, "utf-8")
        written.append(path)
    return written
