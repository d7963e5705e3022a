# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m dashboards`: generate the JSON files."""

from __future__ import annotations

from dashboards.write import write

for path in write():
    print(path.name)
