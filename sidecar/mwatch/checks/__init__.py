# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of a job, each a pure function of its manifest or, while it runs, its live state."""
