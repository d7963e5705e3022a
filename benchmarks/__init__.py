# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How fast and how robust `mwatch parse` is: run with `python -m benchmarks`."""
