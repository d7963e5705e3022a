# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps the tests of this folder from running here, in one line.

`python -m cluster.missing` prints it and ends with 1; with 0 where nothing is missing.
"""

from __future__ import annotations

import os
import shutil
import sys

from cluster.binaries import GoMissing, go_program

KUBECONFIG = "MWATCH_TEST_KUBECONFIG"


def missing() -> str | None:
    if os.environ.get(KUBECONFIG):
        return None if shutil.which("kubectl") else f"{KUBECONFIG} needs kubectl on PATH"
    why = None
    if os.geteuid() != 0:
        why = "a cluster for the tests needs root"
    elif shutil.which("unshare") is None:
        why = "a cluster for the tests needs unshare (Debian: util-linux)"
    else:
        try:
            go_program()
        except GoMissing as error:
            why = str(error)
    return why and f"{why}; or name a cluster that you have in {KUBECONFIG}"


if __name__ == "__main__":
    if found := missing():
        print(f"mwatch: {found}", file=sys.stderr)
        sys.exit(1)
