# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Chunks of bytes to clean lines: transport, prefixes, numbers, literals, coverage."""
