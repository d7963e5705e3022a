# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m mwatch_gpt.data`."""

from __future__ import annotations

import sys

from mwatch_gpt.data.tool import main

if __name__ == "__main__":
    sys.exit(main())
