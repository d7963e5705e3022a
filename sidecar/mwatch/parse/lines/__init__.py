# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turn chunks of bytes into clean lines: transport, prefixes, numbers, literals, coverage."""
