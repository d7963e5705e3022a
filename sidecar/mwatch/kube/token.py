# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The token of each job: what a sidecar asks for before it gives evidence or restarts anything.

All tokens come from one key, the Secret `mwatch-key`: so the controller needs no right to read
other Secrets, only to make them. The Secret `mwatch-JOB` that the pods mount belongs to the job
and goes with it. Without the key's Secret (a new one is made) old pods refuse the new token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

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
    def __init__(
        self,
        access: Access,
        namespace: str,
        *,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._random = random
        self._key: bytes | None = None

    def of(self, job: KubeJob) -> str:
        """The token of this job: the same for every job of that kind and name."""
        words = f"{job.kind.value}/{job.namespace}/{job.name}"
        digest = hmac.new(self._secret_key(), words.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def ensure(self, job: KubeJob) -> str:
        """Makes the job's Secret where it is not there; safe to repeat."""
        if secret_name(job.name) == KEY:
            raise NoPermission(f"a job may not be called {job.name}: its token would be the key")
        token = self.of(job)
        about = OF_KIND[job.kind]
        owner = {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": job.name,
            "uid": job.uid,
        }
        self._make(secret_name(job.name), token.encode(), [owner])
        return token

    def _secret_key(self) -> bytes:
        for _ in range(_TRIES):
            if self._key is not None:
                return self._key
            answer = self._access.get(SECRETS, self._namespace, KEY)
            if answer.is_ok:
                self._key = base64.b64decode(text(answer.body, "data", FIELD))
            else:
                self._make(KEY, self._random(_KEY_BYTES), [])
        if not self._key:
            raise Unavailable(f"Secret {KEY} can neither be read nor made")
        return self._key

    def _make(self, name: str, value: bytes, owners: list[dict[str, str]]) -> None:
        """Who comes second (CONFLICT) leaves what is there."""
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
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
