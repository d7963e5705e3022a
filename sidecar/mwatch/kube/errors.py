# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Failures between mwatch and an API server; each message is one line and names the fix."""

from __future__ import annotations

from mwatch.errors import MwatchError


class KubeError(MwatchError):
    pass


class NoCluster(KubeError):
    """No configuration, or an unusable one."""


class NoCredentials(KubeError):
    """The API server rejects the credentials."""


class NoPermission(KubeError):
    """The user lacks a right."""


class Rejected(KubeError):
    """The request is invalid, or an admission rule refuses it."""


class Unavailable(KubeError):
    """No answer, or an unusable one: worth a retry."""
