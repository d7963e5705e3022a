# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A fake of NCCL's RAS service: the real protocol over real sockets, with answers of a script.

Like NCCL it greets, knows some commands by release, answers one STATUS and closes. On purpose it
can also misbehave: a process that is stopped never speaks, though the kernel accepts for it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TEXT, JSON, MONITOR = 24, 28, 30


class FakeRas:
    def __init__(self, *answers: str, release: int = MONITOR) -> None:
        """The last answer is given again and again."""
        self.answers = list(answers)
        self.release = release
        self.silent_connections = 0
        """So many are accepted and never answered."""
        self.greeting = b"SERVER PROTOCOL 2\n"
        self.finish: Callable[[socket.socket, bytes], None] = _whole
        self.commands: list[str] = []
        self._kept: list[socket.socket] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = ("127.0.0.1", self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def asked(self) -> int:
        return sum(command.endswith("STATUS") for command in self.commands)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for each in self._kept:
            each.close()
        self._thread.join(2)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            if self.silent_connections > 0:
                self.silent_connections -= 1
                self._kept.append(client)
                continue
            with client:
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        try:
            for line in _lines(client):
                self.commands.append(line)
                if line.upper() in ("STATUS", "VERBOSE STATUS"):
                    answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                    self.finish(client, answer.encode())
                    return
                client.sendall(self._answer(line.upper(), line))
        except OSError:
            return

    def _answer(self, command: str, line: str) -> bytes:
        if command.startswith("CLIENT PROTOCOL "):
            return self.greeting
        if command.startswith("TIMEOUT "):
            return b"OK\n"
        if command.startswith("SET FORMAT ") and self.release >= JSON:
            return b"OK\n"
        if command.startswith("MONITOR") and self.release >= MONITOR:
            return f"ERROR: Invalid event group '{line.split()[-1]}'\n".encode()
        return f"ERROR: Unknown command {line}\n".encode()


def _lines(client: socket.socket) -> Iterator[str]:
    rest = b""
    while True:
        piece = client.recv(1024)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in lines)


def _whole(client: socket.socket, answer: bytes) -> None:
    client.sendall(answer)


@contextmanager
def fake_ras(*answers: str, release: int = MONITOR) -> Iterator[FakeRas]:
    made = FakeRas(*answers, release=release)
    try:
        yield made
    finally:
        made.close()
