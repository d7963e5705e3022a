# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration lines that look like the last one, decoded a whole block at a time."""
