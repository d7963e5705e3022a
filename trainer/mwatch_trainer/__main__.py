# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_trainer`, and the start of the .pyz: the same as `mwatch-run`."""

from __future__ import annotations

import sys

from mwatch_trainer.main import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the wrapper takes signals
        sys.exit(130)
