# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A volume with something on it, and the wrapper that dumps into it when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mwatch.evidence.bundle import Bundle, EvidenceLimits, collect
from mwatch_trainer import contract
from support.builders.volume import (
    gpu,
    process,
    write_attempt,
    write_gpus,
    write_probe,
    write_processes,
)

ID = "20260105T121314Z-a1-hang"
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345678"


class Wrapper:
    """Stands at the other end of the control socket: writes the dump that it is asked for."""

    def __init__(self, volume: Path, ranks: int = 2) -> None:
        self.volume = volume
        self.ranks = ranks
        self.asked: list[Mapping[str, Any]] = []
        self.flight = b"\x80\x05]\x94."

    def __call__(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        self.asked.append(request)
        folder = self.volume / contract.DUMPS_FOLDER / str(request["id"])
        folder.mkdir(parents=True)
        for rank in range(self.ranks):
            (folder / f"rank-{rank}.stacks.txt").write_text(f"Thread 1 of {rank}\n")
            (folder / f"rank-{rank}.flight.pickle").write_bytes(self.flight)
        (folder / "missing.json").write_text('{"ranks": []}')
        return {"ok": True}


def filled_volume(tmp_path: Path) -> Path:
    made = tmp_path / "volume"
    made.mkdir()
    write_attempt(made)
    write_processes(made, 5.0, process(11, 0))
    write_gpus(made, 5.0, gpu())
    write_probe(made, 0)
    write_probe(made, 1)
    (made / contract.LOG).write_bytes(b"".join(b"line %d\n" % n for n in range(1000)))
    return made


def save(
    volume: Path, ask: Any = None, extra: Any = None, keep: Any = None, **limits: Any
) -> Bundle:
    folder = volume.parent / "durable" / "incidents" / ID
    return collect(
        str(volume), folder, ID, ask=ask or Wrapper(volume), extra=extra, keep=keep,
        limits=EvidenceLimits(**limits),
    )  # fmt: skip


def missing(bundle: Bundle) -> dict[str, str]:
    return dict(bundle.missing)


def refuse(request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    raise ConnectionRefusedError("nobody listens")
