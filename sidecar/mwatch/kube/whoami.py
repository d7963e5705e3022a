# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who the API server takes us for; where it does not say, who we are on this machine."""

from __future__ import annotations

import getpass
import socket

from mwatch.kube.access import ONCE, Access
from mwatch.kube.errors import NoPermission, Rejected
from mwatch.model.kube_fields import text

_PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
MAX_NAME = 120


def whoami(access: Access) -> str:
    """Kubernetes before 1.28 does not know the question."""
    try:
        answer = access.call("POST", _PATH, body=_BODY, limits=ONCE)
        name = text(answer.body, "status", "userInfo", "username") if answer.is_ok else ""
    except (NoPermission, Rejected):
        name = ""
    return (name or _here())[:MAX_NAME]


def _here() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
