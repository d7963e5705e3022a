# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A unix socket in a folder whose path is longer than the 108 bytes that an address may have."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import Iterator


@contextmanager
def short_path(folder: str, name: str) -> Iterator[str]:
    """Another path of the same file, good inside the block. Raises OSError."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def listen(folder: str, name: str, mode: int) -> socket.socket:
    """Takes the place of a socket that an earlier process left there. Raises OSError."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(folder, name) as path:
            with suppress(FileNotFoundError):
                os.unlink(path)
            server.bind(path)
            os.chmod(path, mode)
        server.listen(8)
    except OSError:
        server.close()
        raise
    return server


def connect(folder: str, name: str, seconds: float) -> socket.socket:
    """Raises OSError."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(seconds)
    try:
        with short_path(folder, name) as path:
            client.connect(path)
    except OSError:
        client.close()
        raise
    return client
