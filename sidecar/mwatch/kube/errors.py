# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What can be wrong between mwatch and an API server; each text is one line and names the fix.

KubeError
├── NoCluster       no configuration, or one that cannot be used
├── NoCredentials   the API server does not take who we say we are
├── NoPermission    it knows us, and we may not
├── Rejected        what was asked for is not valid, or an admission rule refuses it
└── Unavailable     no answer, or none that is one: it may come back
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
