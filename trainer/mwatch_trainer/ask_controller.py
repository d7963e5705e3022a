# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`GET $MWATCH_CONTROLLER/v1/jobs/NAMESPACE/JOB/attempt`: what the controller says of this attempt.

One question is one call with a short limit; who asks repeats it within a bound. Proxies of the
training image are not used: the controller is in the same cluster.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Mapping

CONTROLLER = "MWATCH_CONTROLLER"
NAMESPACE = "MWATCH_NAMESPACE"
JOB = "MWATCH_JOB"
POD = "MWATCH_POD"
POD_HEADER = "Mwatch-Pod"
AFTER_HEADER = "Mwatch-After"
WORD_HEADER = "Mwatch-Word"
TOKEN = "MWATCH_TOKEN"
TOKEN_FILE = "MWATCH_TOKEN_FILE"
_MAX_BYTES = 1 << 20
_SECONDS = 5.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for the controller alone."""

    def redirect_request(self, *_: Any) -> None:
        return None


def address(environ: Mapping[str, str]) -> str | None:
    """None where no controller was named."""
    base, job = environ.get(CONTROLLER, "").rstrip("/"), environ.get(JOB, "")
    if not base.startswith(("http://", "https://")) or not job:
        return None
    quoted = [urllib.parse.quote(each, safe="") for each in (_namespace(environ), job)]
    return "{}/v1/jobs/{}/{}/attempt".format(base, *quoted)


def ask(
    url: str, environ: Mapping[str, str], after: int = 0, word: str = ""
) -> dict[str, Any] | None:
    """The answer; None while there is none. Never raises. `after`: the highest attempt that this
    wrapper knows to have begun, so that the controller can tell a late pod from a second start.
    `word`: the node's number and its word (`join`), so that node 0 can be told who else is here."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    request.add_header(AFTER_HEADER, str(after))
    if word:
        request.add_header(WORD_HEADER, word)
    pod = environ.get(POD, "")
    if pod and pod.isascii() and pod.isprintable():
        request.add_header(POD_HEADER, pod)
    token = _token(environ)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=_SECONDS) as response:
            if response.status != 200:
                return None
            data = response.read(_MAX_BYTES + 1)
        document = json.loads(data.decode("utf-8"))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return None
    return document if isinstance(document, dict) else None


def _namespace(environ: Mapping[str, str]) -> str:
    return environ.get(NAMESPACE) or "default"


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get(TOKEN, "")
    try:
        if not token and environ.get(TOKEN_FILE):
            with open(os.fspath(environ[TOKEN_FILE]), encoding="ascii", errors="replace") as file:
                token = file.read(4096)
    except OSError:
        return ""
    token = token.strip()
    return token if token.isprintable() else ""
