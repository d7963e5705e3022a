# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Failures between mwatch and an API server; each message is one line and names the fix.

KubeError
├── NoCluster       no configuration, or an unusable one
├── NoCredentials   the API server rejects the credentials
├── NoPermission    the user lacks a right
├── Rejected        the request is invalid, or an admission rule refuses it
└── Unavailable     no answer, or an unusable one: worth a retry
"""

from __future__ import annotations

from mwatch.errors import MwatchError


class KubeError(MwatchError):
    pass


class NoCluster(KubeError):
    pass


class NoCredentials(KubeError):
    pass


class NoPermission(KubeError):
    pass


class Rejected(KubeError):
    pass


class Unavailable(KubeError):
    pass
