# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Wiring: the only package that sees every stage, and the one that reads files for them."""
