# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A way to the API server that a test can cut and fix: the server itself goes on for others."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

from cluster import addresses
from cluster.control_plane import ControlPlane


class CutLine:
    def __init__(self, plane: ControlPlane) -> None:
        self._server = socket.create_server((addresses.NODE, 0))
        self.port: int = self._server.getsockname()[1]
        self._is_cut = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        file = plane.folder / f"line-{self.port}.kubeconfig"
        file.write_text(plane.kubeconfig("admin").read_text().replace(":6443", f":{self.port}"))
        self.kubeconfig: Path = file
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """What is open breaks, and nothing new is let through."""
        with self._lock:
            self._is_cut = True
            broken = list(self._open)
        for each in broken:
            _end(each)

    def fix(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        _end(self._server)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._server.accept()
            except OSError:
                return
            if self._is_cut:
                one.close()
                continue
            try:
                other = socket.create_connection((addresses.NODE, 6443), timeout=60)
            except OSError:
                one.close()
                continue
            other.settimeout(None)
            with self._lock:
                is_cut = self._is_cut  # perhaps meanwhile: `cut` did not see these two
                self._open |= set() if is_cut else {one, other}
            if is_cut:
                one.close()
                other.close()
                continue
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass  # cut
        for each in (source, target):
            _end(each)
        with self._lock:
            self._open -= {source}
        source.close()


def _end(each: socket.socket) -> None:
    with suppress(OSError):  # it has gone already
        each.shutdown(socket.SHUT_RDWR)
