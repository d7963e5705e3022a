# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP for one request at a time that somebody else can cut off.

Each read of a socket has its own time limit, so a server that sends a byte now and then would hold
a request for ever: `cut` ends it from another thread. Proxies come from the usual variables; a
redirection is not followed, for it would take the headers, and what is secret in them, elsewhere.
"""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener


class Wire:
    def __init__(
        self,
        certificate: str | None = None,
        client_certificate: str | None = None,
        client_key: str | None = None,
    ) -> None:
        """Paths of files. OSError where one cannot be read."""
        self._socket: socket.socket | None = None
        self._is_cut = False
        self._lock = threading.Lock()
        context = None
        if certificate or client_certificate:
            context = ssl.create_default_context(cafile=certificate)
            if client_certificate:
                context.load_cert_chain(client_certificate, client_key)
        self._opener = build_opener(_Plain(self), _Secured(self, context), _NoRedirection())

    def begin(self) -> None:
        """Before each request: what was cut before it does not matter any more."""
        with self._lock:
            self._socket, self._is_cut = None, False

    def open(self, request: Request, limit_seconds: float) -> Any:
        return self._opener.open(request, timeout=limit_seconds)

    def cut(self) -> None:
        """Whatever is under way fails, also where its connection is only just being made."""
        with self._lock:
            self._is_cut = True
            self._shut()

    @property
    def is_cut(self) -> bool:
        """Since the request began: then half an answer may look like a whole one."""
        return self._is_cut

    def hold(self, connected: socket.socket) -> None:
        with self._lock:
            self._socket = connected
            if self._is_cut:
                self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which also takes away what its reader uses.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Plain(HTTPHandler):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def http_open(self, req: Request) -> Any:
        wire = self._wire

        class Held(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                wire.hold(self.sock)

        return self.do_open(Held, req)


class _Secured(HTTPSHandler):
    def __init__(self, wire: Wire, context: ssl.SSLContext | None) -> None:
        super().__init__()
        self._wire = wire
        self._own_context = context

    def https_open(self, req: Request) -> Any:
        wire = self._wire

        class Held(HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                wire.hold(self.sock)

        context = self._own_context or ssl.create_default_context()
        return self.do_open(Held, req, context=context)


class _NoRedirection(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def without_user(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def authorization(address: str) -> dict[str, str]:
    """Of `http://user:password@host`."""
    parts = urlsplit(address)
    if parts.username is None:
        return {}
    both = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"authorization": "Basic " + base64.b64encode(both.encode()).decode()}
