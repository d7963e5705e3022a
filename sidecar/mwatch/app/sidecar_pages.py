# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a sidecar listens: its pages on a port, and the file on the volume that names that port."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from mwatch import __version__
from mwatch.app.sidecar_file import SidecarFile
from mwatch.app.sidecar_settings import DEFAULT_HOST, SidecarSettings
from mwatch.errors import InputError
from mwatch.export.http import Pages, Server
from mwatch.export.request import in_url

_KEEP_SECONDS = 10.0
_IPV4 = "0.0.0.0"


class SidecarPages:
    def __init__(self, settings: SidecarSettings, pages: Pages, now: float) -> None:
        """InputError where no port can be had."""
        self._settings = settings
        try:
            self._server = _bound(settings, pages)
        except OSError as error:
            words = f"{settings.host} port {settings.port}: cannot be had ({error.strerror})"
            raise InputError(f"{words}; name another with --port or --host") from None
        self._file = SidecarFile(settings.dir, self._document(now))
        self._file.keep()
        self._keep_at = time.monotonic()

    @property
    def where(self) -> str:
        return f"http://{in_url(self._settings.host)}:{self._server.port}"

    @property
    def failures(self) -> int:
        """Requests that a page could not answer."""
        return self._server.failures

    def keep_file(self) -> str | None:
        """Now and then; returns a problem that is new."""
        now = time.monotonic()
        if now < self._keep_at:
            return None
        before = self._file.problem
        self._file.keep()
        self._keep_at = now + (_KEEP_SECONDS if self._file.is_written else 0.0)
        return self._file.problem if self._file.problem != before else None

    def close(self) -> None:
        self._server.close()
        with suppress(OSError):
            self._file.remove()

    def _document(self, now: float) -> dict[str, object]:
        return {
            "port": self._server.port,
            "pid": os.getpid(),
            "run": self._settings.run,
            "pod": self._settings.pod,
            "started_at": now,
            "mwatch": __version__,
        }


def _bound(settings: SidecarSettings, pages: Pages) -> Server:
    try:
        return Server(pages, port=settings.port, host=settings.host)
    except OSError:
        if settings.host != DEFAULT_HOST:
            raise
    return Server(pages, port=settings.port, host=_IPV4)  # there is no IPv6 here
