# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Client for NCCL's RAS service over TCP: one request, one answer, bounded in time and bytes.

Every process of the pod listens on the same address, and the kernel picks one for a connection. It
may pick a stopped process, which never answers; then the client connects again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple, Self

DEFAULT_ADDRESS = ("localhost", 28028)
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
MAX_BYTES = 16 << 20
"""Limit of an answer: about 30,000 ranks of communicators as JSON."""
_MAX_LINE = 4096
_GREETING_SECONDS = 1.0
_TRIES = 6
_CHUNK = 1 << 16
_EVERYWHERE = frozenset({"", "0.0.0.0", "::", "*"})

Address = tuple[str, int]


class RasProtocol(IntEnum):
    TEXT = 24
    JSON = 28
    """From 2.28.7."""
    MONITOR = 29
    """From 2.29.2, where asking about missing ranks no longer corrupts memory (nccl #1762)."""


def address_of(environ: Mapping[str, str]) -> Address:
    """Read `host:port` or `[host]:port` from the trainer's NCCL_RAS_ADDR."""
    host, colon, port = environ.get(ADDRESS_VARIABLE, "").strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        return DEFAULT_ADDRESS
    return ("localhost" if host in _EVERYWHERE else host), int(port)


class RasText(NamedTuple):
    text: str
    is_whole: bool
    """Whether the server closed the connection, which marks the end of an answer."""
    is_too_long: bool = False


class RasLink:
    """One connection. OSError if no process answers, ValueError if the server is not RAS."""

    def __init__(
        self, address: Address, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._rest = b""
        self._socket = self._connected(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def level(self) -> RasProtocol:
        if self._ask("SET FORMAT json") != "OK":
            return RasProtocol.TEXT
        # No such event group exists: a server that knows the command rejects it harmlessly.
        answer = self._ask("MONITOR mwatch")
        return RasProtocol.MONITOR if "event group" in answer else RasProtocol.JSON

    def status(self, level: RasProtocol, gather_seconds: int) -> RasText:
        """Return the answer, or the part that arrived within the time and byte limits."""
        self._ask(f"TIMEOUT {gather_seconds}")
        self._send("VERBOSE STATUS" if level is RasProtocol.TEXT else "STATUS")
        answer, is_whole = bytearray(self._rest), False
        while len(answer) < MAX_BYTES:
            try:
                piece = self._receive()
            except (TimeoutError, ConnectionError):
                break
            if not piece:
                is_whole = True
                break
            answer += piece
        return RasText(answer.decode("utf-8", "replace"), is_whole, len(answer) >= MAX_BYTES)

    def _connected(self, address: Address) -> socket.socket:
        for _ in range(_TRIES):
            limit = min(self._left(), _GREETING_SECONDS)
            self._socket = socket.create_connection(address, timeout=limit)
            self._rest = b""
            try:
                greeting = self._ask("CLIENT PROTOCOL 2", _GREETING_SECONDS)
                if greeting.upper().startswith("SERVER PROTOCOL "):
                    return self._socket
                raise ValueError(f"{address[0]}:{address[1]} does not speak NCCL's RAS protocol")
            except (TimeoutError, ConnectionError):
                self._socket.close()
            except ValueError:
                self._socket.close()
                raise
        raise TimeoutError(f"no process at {address[0]}:{address[1]} answers: are all stopped?")

    def _ask(self, command: str, seconds: float | None = None) -> str:
        until = self._until if seconds is None else min(self._until, self._clock() + seconds)
        self._send(command)
        while b"\n" not in self._rest:
            if len(self._rest) > _MAX_LINE:
                raise ValueError("line too long")
            piece = self._receive(until)
            if not piece:
                raise ConnectionResetError("connection closed before the answer")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def _send(self, command: str) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(command.encode() + b"\n")

    def _receive(self, until: float | None = None) -> bytes:
        self._socket.settimeout(self._left(until))
        return self._socket.recv(_CHUNK)

    def _left(self, until: float | None = None) -> float:
        left = (self._until if until is None else until) - self._clock()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left
