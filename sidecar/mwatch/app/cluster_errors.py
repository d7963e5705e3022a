# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps a command from seeing a cluster, by the one name that the commands know."""

from __future__ import annotations

from mwatch.kube.errors import KubeError

CannotSee = KubeError
