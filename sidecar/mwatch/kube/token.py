# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The token of each job, which a sidecar requires before it hands out evidence or restarts.

All tokens derive from one key in the Secret `mwatch-key`, so the controller may create other
Secrets but need not read them. The pods mount the Secret `mwatch-JOB`, which belongs to the job
and is deleted with it. If the key's Secret is lost, a new key is made and old pods refuse it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping

from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission, Unavailable
from mwatch.kube.resources import OF_KIND, SECRETS
from mwatch.model.kube.fields import text
from mwatch.model.kube.job import KubeJob

KEY = "mwatch-key"
FIELD = "token"
_KEY_BYTES = 32
_TRIES = 3


def secret_name(job: str) -> str:
    return f"mwatch-{job}"


class Tokens:
    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self._namespace = namespace
        self._key: bytes | None = None

    def of(self, job: KubeJob) -> str:
        """The same for every job of that kind and name."""
        name = f"{job.kind.value}/{job.namespace}/{job.name}"
        digest = hmac.new(self._secret_key(), name.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def ensure(self, job: KubeJob) -> str:
        """Create the job's Secret if it is missing; safe to repeat."""
        if secret_name(job.name) == KEY:
            raise NoPermission(f"a job may not be called {job.name}: its token would be the key")
        token = self.of(job)
        owner = OF_KIND[job.kind].typed({"name": job.name, "uid": job.uid})
        self._create(secret_name(job.name), token.encode(), [owner])
        return token

    def _secret_key(self) -> bytes:
        for _ in range(_TRIES):
            if self._key is not None:
                return self._key
            answer = self._access.get(SECRETS, self._namespace, KEY)
            if answer.is_ok:
                self._key = base64.b64decode(text(answer.body, "data", FIELD))
            else:
                self._create(KEY, secrets.token_bytes(_KEY_BYTES), [])
        if not self._key:
            raise Unavailable(f"Secret {KEY} can neither be read nor created")
        return self._key

    def _create(self, name: str, value: bytes, owners: list[Mapping[str, str]]) -> None:
        """A Secret that exists (CONFLICT) is left as it is."""
        body = {
            "type": "Opaque",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/managed-by": "mwatch"},
                "ownerReferences": owners,
            },
            "data": {FIELD: base64.b64encode(value).decode()},
        }
        self._access.create(SECRETS, self._namespace, body)
