# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Asks NCCL's RAS service over TCP: one question, one answer, bounded in time and in bytes.

Every process of the pod listens at the same address and the kernel picks one. A stopped process
is picked as well and never speaks, so whoever does not greet soon is left and another is tried.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from types import TracebackType
from typing import NamedTuple, Self

DEFAULT_ADDRESS = ("localhost", 28028)
ADDRESS_VARIABLE = "NCCL_RAS_ADDR"
MAX_BYTES = 16 << 20
"""About 30,000 ranks of communicators as JSON."""
_MAX_LINE = 4096
_GREETING_SECONDS = 1.0
_TRIES = 6
_CHUNK = 1 << 16
_EVERYWHERE = frozenset({"", "0.0.0.0", "::", "*"})

Address = tuple[str, int]


class RasProtocol(IntEnum):
    """What a server knows; a version is told only with the answer."""

    TEXT = 24
    JSON = 28
    """From 2.28.7."""
    MONITOR = 29
    """From 2.29.2, where asking about missing ranks no longer corrupts memory (nccl #1762)."""


def address_of(environ: Mapping[str, str]) -> Address:
    """Where the trainer's NCCL was told to listen, as `host:port` or `[host]:port`."""
    host, colon, port = environ.get(ADDRESS_VARIABLE, "").strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        return DEFAULT_ADDRESS
    return ("localhost" if host in _EVERYWHERE else host), int(port)


class RasText(NamedTuple):
    text: str
    is_whole: bool
    """The server closed the connection, as it does at the end of an answer."""
    is_too_long: bool = False


class RasLink:
    """One connection. OSError where nobody answers, ValueError where it is not RAS that does."""

    def __init__(
        self, address: Address, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._rest = b""
        self._socket = self._connected(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def level(self) -> RasProtocol:
        """Asked with commands that change nothing."""
        if self._ask("SET FORMAT json") != "OK":
            return RasProtocol.TEXT
        # There is no such group of events: who knows the command says so, and does not begin.
        answer = self._ask("MONITOR mwatch")
        return RasProtocol.MONITOR if "event group" in answer else RasProtocol.JSON

    def status(self, level: RasProtocol, gather_seconds: int) -> RasText:
        """The answer, or what came of it in time and within bounds."""
        self._ask(f"TIMEOUT {gather_seconds}")
        command = "VERBOSE STATUS" if level is RasProtocol.TEXT else "STATUS"
        self._send(command)
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
            self._socket = socket.create_connection(address, timeout=self._left(_GREETING_SECONDS))
            self._rest = b""
            try:
                greeting = self._ask("CLIENT PROTOCOL 2", _GREETING_SECONDS)
            except (TimeoutError, ConnectionError):
                self._socket.close()
                continue
            except ValueError:
                self._socket.close()
                raise
            if greeting.upper().startswith("SERVER PROTOCOL "):
                return self._socket
            self._socket.close()
            raise ValueError(f"{address[0]}:{address[1]} does not speak NCCL's RAS protocol")
        raise TimeoutError(f"no process at {address[0]}:{address[1]} greets: all stopped?")

    def _ask(self, command: str, seconds: float | None = None) -> str:
        """One line for one line."""
        until = self._until if seconds is None else min(self._until, self._clock() + seconds)
        self._send(command)
        while b"\n" not in self._rest:
            if len(self._rest) > _MAX_LINE:
                raise ValueError("a line without end")
            piece = self._receive(until)
            if not piece:
                raise ConnectionResetError("closed before it answered")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace").strip()

    def _send(self, command: str) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(command.encode() + b"\n")

    def _receive(self, until: float | None = None) -> bytes:
        left = (self._until if until is None else until) - self._clock()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left)
        return self._socket.recv(_CHUNK)

    def _left(self, most: float | None = None) -> float:
        left = self._until - self._clock()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left if most is None else min(left, most)
