# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An image for containerd made from files, without a container engine: one layer, docker-archive.

Times and owners are fixed, so that the same files give the same image.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDERS = ("tmp", "proc", "sys", "dev", "etc", "usr", "lib", "lib64", "root", "bin", "var", "run")
"""That the runtime or a mount expects to be there."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class Layer:
    """What an image holds, written into a file as it is added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._archive = tarfile.TarFile(path, "w")
        self._names: set[str] = set()
        for name in FOLDERS:
            self.folder(name)

    def folder(self, name: str) -> None:
        parts = Path(name).parts
        for count in range(1, len(parts) + 1):
            each = str(Path(*parts[:count]))
            if each not in self._names:
                self._add(each, tarfile.DIRTYPE, mode=0o1777 if each == "tmp" else 0o755)

    def data(self, name: str, data: bytes, *, mode: int = 0o755) -> None:
        self.folder(str(Path(name).parent))
        info = self._info(name, tarfile.REGTYPE, mode)
        info.size = len(data)
        self._archive.addfile(info, io.BytesIO(data))

    def link(self, name: str, target: str) -> None:
        self.folder(str(Path(name).parent))
        info = self._info(name, tarfile.SYMTYPE, 0o777)
        info.linkname = target
        self._archive.addfile(info)

    def file(self, name: str, source: Path) -> None:
        """`source` itself where it is a file, what it points at where it is a link."""
        self.folder(str(Path(name).parent))
        if name in self._names:
            return
        info = self._info(name, tarfile.REGTYPE, 0o755 if source.stat().st_mode & 0o100 else 0o644)
        info.size = source.stat().st_size
        with source.open("rb") as content:
            self._archive.addfile(info, content)

    def close(self) -> bytes:
        """The digest of the layer."""
        self._archive.close()
        with self._path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").digest()

    def _add(self, name: str, kind: bytes, *, mode: int) -> None:
        self._archive.addfile(self._info(name, kind, mode))

    def _info(self, name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        self._names.add(name)
        info = tarfile.TarInfo(name)
        info.type, info.mode = kind, mode
        return info


def save(path: Path, tag: str, layer: Layer, layer_path: Path, config: Mapping[str, Any]) -> None:
    """`config` as Docker has it: Env, Entrypoint, User…"""
    digest = layer.close().hex()
    machine = platform.machine()
    meta = json.dumps(
        {
            "architecture": _MACHINES.get(machine, machine),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(meta).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": [f"{digest}.tar"]}]
    with tarfile.open(path, "w") as archive:
        for each, data in ((name, meta), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(each)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        archive.add(layer_path, f"{digest}.tar")
