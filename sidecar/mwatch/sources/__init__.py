# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs of mwatch, one source per file; each read is `Ok`, `Absent` or `Failed`."""
