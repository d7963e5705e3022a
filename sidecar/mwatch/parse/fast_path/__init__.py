# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decode iteration lines that look like the previous one, a whole block at a time."""
